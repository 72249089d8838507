//! Weights are decoded as candle decodes them, for every type. Here, because the kernels are built without candle.
#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that goes wrong")]

use candle_core::Device;
use candle_core::quantized::{GgmlDType, ggml_file::qtensor_from_ggml};
use taper_kernels::WeightType;
use taper_kernels::reference::dequantize::dequantize_row;
use taper_testkit::quantize::{TinyType, encode};
use taper_testkit::rng::SplitMix;

const COLS: usize = 2048;

const TYPES: [(TinyType, WeightType, GgmlDType); 13] = [
    (TinyType::F32, WeightType::F32, GgmlDType::F32),
    (TinyType::F16, WeightType::F16, GgmlDType::F16),
    (TinyType::BF16, WeightType::BF16, GgmlDType::BF16),
    (TinyType::Q4_0, WeightType::Q4_0, GgmlDType::Q4_0),
    (TinyType::Q4_1, WeightType::Q4_1, GgmlDType::Q4_1),
    (TinyType::Q5_0, WeightType::Q5_0, GgmlDType::Q5_0),
    (TinyType::Q5_1, WeightType::Q5_1, GgmlDType::Q5_1),
    (TinyType::Q8_0, WeightType::Q8_0, GgmlDType::Q8_0),
    (TinyType::Q2_K, WeightType::Q2_K, GgmlDType::Q2K),
    (TinyType::Q3_K, WeightType::Q3_K, GgmlDType::Q3K),
    (TinyType::Q4_K, WeightType::Q4_K, GgmlDType::Q4K),
    (TinyType::Q5_K, WeightType::Q5_K, GgmlDType::Q5K),
    (TinyType::Q6_K, WeightType::Q6_K, GgmlDType::Q6K),
];

#[test]
fn every_type_decodes_as_candle_decodes_it() {
    assert_eq!(TYPES.map(|(tiny, ..)| tiny), TinyType::ALL);
    for (tiny, weight_type, candle_type) in TYPES {
        for seed in 0..20 {
            let mut rng = SplitMix::new(seed);
            let values = rng.normals(COLS, 0.1);
            let mut bytes = encode(tiny, &values, &mut rng);
            if tiny == TinyType::Q2_K {
                // Scales and minima that share a byte differ.
                for block in bytes.chunks_exact_mut(tiny.block_bytes()) {
                    block[..16].copy_from_slice(&rng.bytes(16));
                }
            }
            let mut ours = vec![f32::NAN; COLS];
            dequantize_row(weight_type, &bytes, &mut ours);
            let theirs = qtensor_from_ggml(candle_type, &bytes, vec![COLS], &Device::Cpu).unwrap();
            let theirs = theirs.dequantize(&Device::Cpu).unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(ours, theirs, "{weight_type:?} with seed {seed}");
        }
    }
}
