//! Products by NVIDIA's cuBLASLt, whose library is looked for when somebody asks: it is no part of the driver, and hundreds of
//! megabytes. cudarc panics where the library or one of its functions is missing, so both are looked for before.

use super::device::{DevicePtr, LibraryProduct};
use super::error::DeviceError;
use super::library;
use cudarc::cublas::sys::cublasOperation_t as Operation;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as ComputeType, cublasLtEpilogue_t as Epilogue, cublasLtHandle_t as Handle,
    cublasLtMatmulAlgo_t as Algorithm, cublasLtMatmulDesc_t as Description,
    cublasLtMatmulDescAttributes_t as DescriptionAttribute, cublasLtMatmulHeuristicResult_t as Proposal,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute, cublasLtMatrixLayout_t as Layout,
    cublasStatus_t as Status, cudaDataType,
};
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The functions that are called here.
const FUNCTIONS: [&str; 12] = [
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
];
/// Ways of a product that are kept, at most.
const CANDIDATES: usize = 8;
/// Products of other shapes that are kept: some for each number of rows that a step of prompts may have. When there are more, all are
/// forgotten, and asked for again.
const MAX_PLANS: usize = 8192;
/// What the addresses of a product's operands are multiples of, at least.
const ALIGNMENT: u32 = 16;

fn call(name: &'static str) -> impl Fn(CublasError) -> DeviceError {
    move |CublasError(status)| DeviceError::Library { call: name, status: format!("{status:?}") }
}

/// Makes sure that the library is loaded and has all functions: after that cudarc's wrappers of them do not panic.
fn require() -> Result<(), String> {
    // Kept for ever: cudarc opens the same one again.
    static LIBRARY: OnceLock<Result<libloading::Library, String>> = OnceLock::new();
    let load = || {
        let names = cudarc::get_lib_name_candidates("cublasLt");
        let names: Vec<String> = names.into_iter().filter(|name| name.starts_with("libcublasLt.")).collect();
        library::open(&names).map_err(|reason| absent(&names, &reason))
    };
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)?;
    let missing = FUNCTIONS.iter().find(|name| {
        // SAFETY: one of the names that cudarc looks for was found, so `culib` finds one and does not panic. The address is not called.
        unsafe { sys::culib().get::<unsafe extern "C" fn()>(**name).is_err() }
    });
    missing.map_or(Ok(()), |name| {
        Err(format!("the library that was found has no function {name}; another release is needed"))
    })
}

fn absent(names: &[String], reason: &str) -> String {
    format!(
        "none of {} could be loaded ({reason}); it comes with the CUDA toolkit and with the Python package nvidia-cublas, whose folder \
         LD_LIBRARY_PATH has to name",
        names.join(", ")
    )
}

/// What decides how a product is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Form {
    rows: usize,
    num_outputs: usize,
    cols: usize,
    out_stride: usize,
    has_bias: bool,
    workspace_bytes: usize,
}

impl Form {
    fn of(product: &LibraryProduct) -> Form {
        let &LibraryProduct { rows, num_outputs, cols, out_stride, bias, workspace_bytes, .. } = product;
        Form { rows, num_outputs, cols, out_stride, has_bias: bias.is_some(), workspace_bytes }
    }
}

/// A product that the library knows, with the ways in which it would compute it, the best one first.
///
/// The library counts columns first: what is `[rows, cols]` here is `cols x rows` there, so `out^T = w x^T` is what it is told.
struct Plan {
    description: Description,
    weights: Layout,
    x: Layout,
    out: Layout,
    algorithms: Vec<Algorithm>,
}

impl Plan {
    fn new(handle: Handle, form: &Form) -> Result<Plan, DeviceError> {
        let &Form { rows, num_outputs, cols, out_stride, has_bias, workspace_bytes } = form;
        let description = result::create_matmul_desc(ComputeType::CUBLAS_COMPUTE_32F, cudaDataType::CUDA_R_32F);
        let description = description.map_err(call("cublasLtMatmulDescCreate"))?;
        let mut plan =
            Plan { description, weights: null_mut(), x: null_mut(), out: null_mut(), algorithms: Vec::new() };
        plan.describe(DescriptionAttribute::CUBLASLT_MATMUL_DESC_TRANSA, &Operation::CUBLAS_OP_T)?;
        if has_bias {
            plan.describe(DescriptionAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &Epilogue::CUBLASLT_EPILOGUE_BIAS)?;
        }
        let layout = |data_type, of_row: usize, count: usize, stride: usize| {
            result::create_matrix_layout(data_type, of_row as u64, count as u64, stride as i64)
                .map_err(call("cublasLtMatrixLayoutCreate"))
        };
        plan.weights = layout(cudaDataType::CUDA_R_16BF, cols, num_outputs, cols)?;
        plan.x = layout(cudaDataType::CUDA_R_16BF, cols, rows, cols)?;
        plan.out = layout(cudaDataType::CUDA_R_32F, num_outputs, rows, out_stride)?;
        plan.algorithms = plan.propose(handle, workspace_bytes)?;
        Ok(plan)
    }

    fn describe<T>(&self, attribute: DescriptionAttribute, value: &T) -> Result<(), DeviceError> {
        // SAFETY: the description is there until `drop`, and the value is of the size that is said.
        let answer = unsafe {
            result::set_matmul_desc_attribute(
                self.description,
                attribute,
                std::ptr::from_ref(value).cast::<c_void>(),
                size_of::<T>(),
            )
        };
        answer.map_err(call("cublasLtMatmulDescSetAttribute"))
    }

    /// None where the library has no such product.
    fn propose(&self, handle: Handle, workspace_bytes: usize) -> Result<Vec<Algorithm>, DeviceError> {
        let preference = Preference::new(workspace_bytes)?;
        let mut proposals = [const { MaybeUninit::<Proposal>::uninit() }; CANDIDATES];
        let mut count = 0;
        // SAFETY: all handles are of objects that are there, and the library writes no more proposals than there is room for.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                self.description,
                self.weights,
                self.x,
                self.out,
                self.out,
                preference.0,
                CANDIDATES as i32,
                proposals.as_mut_ptr().cast(),
                &raw mut count,
            )
        };
        if status == Status::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        status.result().map_err(call("cublasLtMatmulAlgoGetHeuristic"))?;
        let count = usize::try_from(count).unwrap_or(0).min(CANDIDATES);
        // SAFETY: the library has written `count` of them.
        let proposals = proposals[..count].iter().map(|proposal| unsafe { proposal.assume_init_read() });
        let usable = proposals.filter(|proposal| proposal.state == Status::CUBLAS_STATUS_SUCCESS);
        Ok(usable.map(|proposal| proposal.algo).collect())
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: each was made by `new`, or is null, and is used by nobody any more.
        unsafe {
            for layout in [self.weights, self.x, self.out] {
                if !layout.is_null() {
                    let _ = result::destroy_matrix_layout(layout);
                }
            }
            let _ = result::destroy_matmul_desc(self.description);
        }
    }
}

/// What proposals must keep to.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new(workspace_bytes: usize) -> Result<Preference, DeviceError> {
        let preference = Preference(result::create_matmul_pref().map_err(call("cublasLtMatmulPreferenceCreate"))?);
        preference.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes)?;
        for attribute in [
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            preference.set(attribute, &ALIGNMENT)?;
        }
        Ok(preference)
    }

    fn set<T>(&self, attribute: PreferenceAttribute, value: &T) -> Result<(), DeviceError> {
        // SAFETY: the preference is there until `drop`, and the value is of the size that is said.
        let answer = unsafe {
            result::set_matmul_pref_attribute(
                self.0,
                attribute,
                std::ptr::from_ref(value).cast::<c_void>(),
                size_of::<T>(),
            )
        };
        answer.map_err(call("cublasLtMatmulPreferenceSetAttribute"))
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: it was made by `new` and is used by nobody any more.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// The library, on the device whose context is current whenever one of its functions is called.
pub(super) struct CublasLt {
    handle: Handle,
    plans: Mutex<HashMap<Form, Plan>>,
}

// SAFETY: the library's functions may be called from any thread; plans are used under the lock alone.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

impl CublasLt {
    pub(super) fn open() -> Result<CublasLt, DeviceError> {
        require().map_err(|reason| DeviceError::NoLibrary { reason })?;
        let handle = result::create_handle().map_err(call("cublasLtCreate"))?;
        Ok(CublasLt { handle, plans: Mutex::default() })
    }

    /// # Safety
    /// That of [`super::Device::multiply`]; the stream is of the context that is current.
    pub(super) unsafe fn multiply(
        &self,
        product: &LibraryProduct,
        stream: cudarc::driver::sys::CUstream,
    ) -> Result<bool, DeviceError> {
        let form = Form::of(product);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if plans.len() == MAX_PLANS && !plans.contains_key(&form) {
            plans.clear();
        }
        let plan = match plans.entry(form) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(Plan::new(self.handle, &form)?),
        };
        let Some(algorithm) = plan.algorithms.get(product.candidate).or(plan.algorithms.first()) else {
            return Ok(false);
        };
        if let Some(DevicePtr(bias)) = product.bias {
            plan.describe(DescriptionAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        let (one, zero) = (1.0_f32, 0.0_f32);
        let out = product.out.0 as *mut c_void;
        // SAFETY: the operands are the caller's obligation; the plan is theirs, and its algorithm was proposed for that much
        // workspace. Both scales are read before the call returns.
        let answer = unsafe {
            result::matmul(
                self.handle,
                plan.description,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                product.weights.0 as *const c_void,
                plan.weights,
                product.x.0 as *const c_void,
                plan.x,
                out.cast_const(),
                plan.out,
                out,
                plan.out,
                std::ptr::from_ref(algorithm),
                product.workspace.0 as *mut c_void,
                product.workspace_bytes,
                stream.cast(),
            )
        };
        answer.map(|()| true).map_err(call("cublasLtMatmul"))
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        self.plans.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        // SAFETY: the handle was made by `open` and is used by nobody any more.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_library_is_told_what_was_looked_for_and_where_it_comes_from() {
        let names = ["libnone.so".to_owned(), "libnone.so.1".to_owned()];
        let reason = absent(&names, &library::open(&names).unwrap_err());
        let error = DeviceError::NoLibrary { reason }.to_string();
        for part in ["cuBLASLt cannot be used: none of libnone.so, libnone.so.1", "nvidia-cublas", "LD_LIBRARY_PATH"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn products_of_other_shapes_and_epilogues_have_plans_of_their_own() {
        let null = DevicePtr(0);
        let product = LibraryProduct {
            rows: 64,
            num_outputs: 32,
            cols: 16,
            x: null,
            weights: null,
            bias: None,
            out: null,
            out_stride: 32,
            workspace: null,
            workspace_bytes: 0,
            candidate: 0,
        };
        let form = Form::of(&product);
        assert_eq!(form, Form::of(&LibraryProduct { out: DevicePtr(64), candidate: 3, ..product }));
        assert_ne!(form, Form::of(&LibraryProduct { rows: 65, ..product }));
        assert_ne!(form, Form::of(&LibraryProduct { bias: Some(null), ..product }));
        assert_ne!(form, Form::of(&LibraryProduct { out_stride: 64, ..product }));
    }
}
