//! The softmax of a whole model: references change no bit of a logit where none is recomputed, those that do not fit are
//! recomputed and counted, and calibration leaves out the layers that no reference fits.
#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that goes wrong")]

mod support;

use support::{cpu, load, run_pieces, run_whole};
use taper_kernels::{Backend, Reference, UnifiedRange};
use taper_models::{Calibration, Error, Llama, ModelSoftmax};
use taper_testkit::rng::SplitMix;
use taper_testkit::tiny::{TinyModel, TinyType};

fn tokens(len: usize) -> Vec<u32> {
    let mut rng = SplitMix::new(9);
    (0..len).map(|_| rng.below(256) as u32).collect()
}

/// Bits, so that equality means what it says.
fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
}

/// Its first layer has scores beyond +-150, the others have ordinary ones.
fn hot() -> TinyModel {
    TinyModel { layers: 3, qk_gain: &[6.0], ..TinyModel::default() }
}

fn calibration<B: Backend>(model: &mut Llama<B>) -> Calibration {
    let mut told = 0;
    let calibration = Calibration::measure(model, &tokens(900), &mut |done| told = done).unwrap();
    assert_eq!(told, 900);
    calibration
}

/// What calibration found, and its two-sided form.
fn two_sided(calibration: &Calibration) -> ModelSoftmax {
    match calibration.softmax() {
        ModelSoftmax::Calibrated(layers) => ModelSoftmax::CalibratedTwoSided(layers),
        other => panic!("{other:?} is not calibrated"),
    }
}

#[test]
fn every_choice_gives_the_bits_of_the_online_softmax_where_nothing_is_recomputed() {
    for (architecture, weight_type) in [("llama", TinyType::F32), ("qwen2", TinyType::Q4_1), ("qwen3", TinyType::Q8_0)]
    {
        let tiny = TinyModel { architecture, weight_type, ..TinyModel::default() };
        let mut model = load(cpu(2), tiny.to_gguf()).unwrap();
        let (text, blocks) = (tokens(150), [0, 1, 2]);
        let online = run_pieces(&mut model, &text, &[100, 1, 49], &blocks);
        let found = calibration(&mut model);
        assert!(found.layers.iter().all(|layer| !layer.excluded), "{architecture}: {found:?}");
        for softmax in [ModelSoftmax::OnlineThreshold, ModelSoftmax::Bounded, found.softmax()] {
            model.set_softmax(softmax).unwrap();
            let rows = run_pieces(&mut model, &text, &[100, 1, 49], &blocks);
            assert_eq!(model.recomputed_rows(), 0, "{architecture}, {:?}", model.softmax());
            assert_eq!(bits(&rows), bits(&online), "{architecture}, {:?}", model.softmax());
        }
        // A row that is recomputed is an online row.
        model.set_softmax(two_sided(&found)).unwrap();
        assert_eq!(bits(&run_whole(&mut model, &text)), bits(&online), "{architecture}");
    }
}

#[test]
fn a_layer_of_hot_scores_is_excluded_and_runs_online() {
    let mut model = load(cpu(2), hot().to_gguf()).unwrap();
    let found = calibration(&mut model);
    assert_eq!(found.layers.iter().map(|layer| layer.excluded).collect::<Vec<_>>(), [true, false, false], "{found:?}");
    let spread = found.layers[0].heads.iter().all(|head| head.b - head.a > 2.0 * 150.0 * std::f32::consts::LOG2_E);
    assert!(spread, "{found:?}");
    let online = run_whole(&mut model, &tokens(150));
    model.set_softmax(found.softmax()).unwrap();
    assert_eq!(bits(&run_whole(&mut model, &tokens(150))), bits(&online));
    assert_eq!(model.attended()[0].recomputed, 0);
}

#[test]
fn rows_that_a_bound_does_not_fit_are_recomputed_and_counted_in_their_layer() {
    let mut model = load(cpu(2), hot().to_gguf()).unwrap();
    let online = run_whole(&mut model, &tokens(150));
    model.set_softmax(ModelSoftmax::Bounded).unwrap();
    let before = model.attended();
    let bounded = run_whole(&mut model, &tokens(150));
    let attended = model.attended();
    let [first, others @ ..] = &attended[..] else { panic!("there are layers") };
    assert!(first.recomputed > 0 && others.iter().all(|layer| layer.recomputed == 0), "{:?}", model.attended());
    assert_eq!(first.computed - before[0].computed, 150 * 4, "rows times query heads");
    assert_eq!(model.recomputed_rows(), first.recomputed);
    for (bounded, online) in bounded.iter().flatten().zip(online.iter().flatten()) {
        assert!((bounded - online).abs() < 1e-4, "{bounded} for {online}");
    }
}

#[test]
fn what_is_calibrated_does_not_depend_on_the_backend() {
    let on_cpu = calibration(&mut load(cpu(2), TinyModel::default().to_gguf()).unwrap());
    let on_reference = calibration(&mut load(Reference::new(), TinyModel::default().to_gguf()).unwrap());
    for (a, b) in on_cpu.layers.iter().zip(&on_reference.layers).flat_map(|(a, b)| a.heads.iter().zip(&b.heads)) {
        assert!((a.phi - b.phi).abs() <= 1 && (a.a - b.a).abs() <= 1.0 && (a.b - b.b).abs() <= 1.0, "{a:?}, {b:?}");
    }
}

#[test]
fn a_calibration_of_another_model_is_refused() {
    let mut model = load(cpu(1), TinyModel::default().to_gguf()).unwrap();
    let range = UnifiedRange { phi: 0, a: -10.0, b: 10.0 };
    for layers in [vec![None; 3], vec![None, Some(vec![range; 3])]] {
        assert!(matches!(model.set_softmax(ModelSoftmax::Calibrated(layers)), Err(Error::BadOption(_))));
    }
    assert_eq!(*model.softmax(), ModelSoftmax::Online);
}
