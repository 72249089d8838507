//! The table of schemes, for tests and benchmarks that run all of them on the same rows.

use super::{
    Calibration, Context, State, Tile, Validity, bounded, calibrated, extend, online, parallel, three_pass, tiled,
};

/// A scheme that turns rows of scores into rows of probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// [`three_pass()`].
    ThreePass,
    /// [`online()`].
    Online,
    /// [`extend()`]: the first half of a row is finished, then takes in the second.
    Extension,
    /// [`parallel()`].
    Parallel,
    /// [`tiled()`].
    Tiled,
    /// [`calibrated()`] with [`Validity::Row`].
    Calibrated,
    /// [`calibrated()`] with [`Validity::TwoSided`].
    CalibratedTwoSided,
    /// [`bounded()`].
    Bounded,
}

/// What some schemes ask to be told beforehand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// For the calibrated schemes.
    pub calibration: Calibration,
    /// For the bounded scheme: no score is larger in magnitude.
    pub bound: f32,
    /// For the tiled scheme.
    pub tile: Tile,
}

impl Settings {
    /// The settings that fit these scores: phi in the middle of them, a range that just holds them, their largest magnitude,
    /// and eight column blocks of at least 128 to a row of `cols`.
    pub fn measured(x: &[f32], cols: usize) -> Self {
        let finite = || x.iter().copied().filter(|x| x.is_finite());
        let (low, high) = finite().fold((f32::MAX, f32::MIN), |(low, high), x| (low.min(x), high.max(x)));
        let (low, high) = if low <= high { (low, high) } else { (0.0, 0.0) };
        let phi = (low / 2.0 + high / 2.0).floor();
        let calibration = Calibration { phi, a: low - phi - 1.0, b: high - phi + 1.0 };
        let tile = Tile { rows: 4, cols: cols.div_ceil(8).next_multiple_of(128) };
        Self { calibration, bound: high.abs().max(low.abs()), tile }
    }
}

impl Scheme {
    /// Every scheme.
    pub const ALL: [Self; 8] = [
        Self::ThreePass,
        Self::Online,
        Self::Extension,
        Self::Parallel,
        Self::Tiled,
        Self::Calibrated,
        Self::CalibratedTwoSided,
        Self::Bounded,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::ThreePass => "three-pass",
            Self::Online => "online",
            Self::Extension => "extension",
            Self::Parallel => "parallel",
            Self::Tiled => "tiled",
            Self::Calibrated => "calibrated",
            Self::CalibratedTwoSided => "calibrated-two-sided",
            Self::Bounded => "bounded",
        }
    }

    /// Writes the softmax of each row of `cols` elements; the number of rows that were recomputed.
    pub fn run(self, context: Context<'_>, settings: &Settings, x: &[f32], cols: usize, out: &mut [f32]) -> usize {
        match self {
            Self::ThreePass => three_pass(context, x, cols, out),
            Self::Online => online(context, x, cols, out),
            Self::Extension => {
                for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact_mut(cols)) {
                    let half = cols / 2;
                    let state = extend(context, State::EMPTY, &x[..half], &mut out[..half]);
                    extend(context, state, &x[half..], out);
                }
            }
            Self::Parallel => parallel(context, x, cols, out),
            Self::Tiled => tiled(context, settings.tile, x, cols, out),
            Self::Calibrated => return calibrated(context, settings.calibration, Validity::Row, x, cols, out),
            Self::CalibratedTwoSided => {
                return calibrated(context, settings.calibration, Validity::TwoSided, x, cols, out);
            }
            Self::Bounded => return bounded(context, settings.bound, x, cols, out),
        }
        0
    }
}
