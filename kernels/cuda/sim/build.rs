//! With the feature `simulator`: compiles the simulator and every kernel, as C++, into a library of which nothing may be left
//! out when it is linked, because kernels are found by what their files register before `main`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "simulator")]
    simulator::compile();
}

#[cfg(feature = "simulator")]
mod simulator {
    use std::path::{Path, PathBuf};

    pub(crate) fn compile() {
        // Both folders, for files that come or go.
        for folder in ["..", "."] {
            println!("cargo::rerun-if-changed={folder}");
        }
        let mut sources = vec!["machine.cpp".into(), "hopper.cpp".into(), "races.cpp".into(), "c_api.cpp".into()];
        sources.extend(kernels());
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .opt_level(2)
            .flags(["-Wall", "-Wextra", "-Wno-unknown-pragmas"])
            // Sums must not depend on whether this processor has a fused multiply-add: kernels ask for it by name.
            .flag("-ffp-contract=off")
            .flags(["-x", "c++"])
            .files(sources)
            .link_lib_modifier("+whole-archive")
            .compile("taper_cuda_sim");
    }

    fn kernels() -> Vec<PathBuf> {
        let folder = Path::new("..").read_dir().expect("the folder of the kernels can be read");
        let mut kernels: Vec<PathBuf> = folder
            .map(|entry| entry.expect("the folder of the kernels can be read").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
            .collect();
        kernels.sort();
        kernels
    }
}
