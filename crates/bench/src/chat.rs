//! The time to first token of a chat, turn by turn, with one path and with two.
//!
//! Before a turn the whole conversation is the prompt, and what the prefix cache holds of it need not be computed. With one
//! path a token's keys have the same bits whether it was a prompt token or a generated one, so answers are reused as they
//! were generated. With two paths (prompts by other arithmetic than generated tokens) a block is reused only where it was
//! computed as a prompt: each answer is computed a second time, in the turn after it. Blocks are reused whole.

use crate::plot::{Plot, Series};
use crate::statistics::ratio;
use crate::{Column, Effort, Error, Findings, Measurement, Record, Summary, figure, params};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde_json::{Map, Value};
use std::ops::Range;
use std::time::Instant;
use taper_kernels::{AttentionScheme, BLOCK_SIZE, Backend};
use taper_models::{Llama, LoadOptions, LogitRows, SequenceSlice};

/// Name of the benchmark.
pub const NAME: &str = "chat";

/// Lengths of a conversation, in tokens.
#[derive(Debug, Clone, Copy)]
pub struct Script {
    /// Questions, each with its answer.
    pub turns: usize,
    /// Tokens that a question adds, those of the template among them.
    pub question_len: usize,
    /// Tokens of an answer.
    pub answer_len: usize,
}

impl Script {
    /// Positions that the whole conversation takes.
    pub fn context_len(self) -> usize {
        self.turns.saturating_mul(self.question_len.saturating_add(self.answer_len))
    }

    /// The load options of a model that shall hold it.
    pub fn load_options(self, attention: AttentionScheme) -> LoadOptions {
        LoadOptions {
            context_len: Some(self.context_len()),
            num_blocks: Some(self.context_len().div_ceil(BLOCK_SIZE)),
            max_logit_rows: 1,
            attention,
            ..LoadOptions::default()
        }
    }

    /// Positions that a turn (from 0) computes as a prompt.
    fn computed(self, turn: usize, two_paths: bool) -> Range<usize> {
        let before = turn * (self.question_len + self.answer_len);
        let reusable = match turn {
            0 => 0,
            // Up to the answer.
            _ if two_paths => before - self.answer_len,
            // Up to the answer's last token, which was chosen and not yet computed.
            _ => before - 1,
        };
        reusable / BLOCK_SIZE * BLOCK_SIZE..before + self.question_len
    }
}

/// How prompts and generated tokens are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arm {
    OneFull,
    OneMixed,
    Two,
}

impl Arm {
    const ALL: [Arm; 3] = [Arm::OneFull, Arm::OneMixed, Arm::Two];

    fn name(self) -> &'static str {
        match self {
            Arm::OneFull => "one path, full",
            Arm::OneMixed => "one path, mixed",
            Arm::Two => "two paths, prompts mixed",
        }
    }
}

/// A conversation that a model holds in its cache, whatever computes it.
pub trait Conversation {
    /// Seconds from the beginning of computing these positions to the logits behind the last.
    ///
    /// # Errors
    /// What the model's forward pass says.
    fn first_token(&mut self, computed: Range<usize>) -> Result<f64, Error>;
}

/// A model, and the seeded random tokens of a conversation.
struct Held<B: Backend> {
    model: Llama<B>,
    tokens: Vec<u32>,
    block_table: Vec<u32>,
    /// Positions in the cache.
    cached: usize,
}

/// A conversation on a model that was loaded with [`Script::load_options`].
pub fn conversation<B: Backend>(model: Llama<B>, script: Script) -> Box<dyn Conversation> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let vocab_size = model.config().vocab_size as u32;
    let tokens = (0..script.context_len()).map(|_| rng.random_range(0..vocab_size)).collect();
    let block_table = (0..script.context_len().div_ceil(BLOCK_SIZE) as u32).collect();
    Box::new(Held { model, tokens, block_table, cached: 0 })
}

impl<B: Backend> Held<B> {
    fn compute(&mut self, positions: Range<usize>) -> Result<(), Error> {
        let Held { model, tokens, block_table, cached } = self;
        for start in positions.clone().step_by(model.max_rows()) {
            let end = (start + model.max_rows()).min(positions.end);
            let logits = if end == positions.end { LogitRows::Last } else { LogitRows::None };
            let _ = model.forward(&[SequenceSlice { tokens: &tokens[start..end], start, block_table, logits }])?;
        }
        *cached = positions.end.max(*cached);
        Ok(())
    }
}

impl<B: Backend> Conversation for Held<B> {
    fn first_token(&mut self, computed: Range<usize>) -> Result<f64, Error> {
        if self.cached < computed.start {
            // What is reused: who computed it, and when, is no part of the time.
            self.compute(self.cached..computed.start)?;
        }
        let start = Instant::now();
        self.compute(computed)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// A row per turn and arm, `samples` of each in turns; `about` is put before what a row says of itself.
///
/// # Errors
/// What the models' forward passes say.
pub fn measure(
    full: &mut dyn Conversation,
    mixed: &mut dyn Conversation,
    (script, samples): (Script, usize),
    about: &Map<String, Value>,
) -> Result<Vec<Measurement>, Error> {
    let mut measured = Vec::new();
    let effort = Effort { samples, time: std::time::Duration::ZERO };
    for turn in 0..script.turns {
        let computed = Arm::ALL.map(|arm| script.computed(turn, arm == Arm::Two));
        let seconds = effort.rounds(Arm::ALL.len(), |index| match Arm::ALL[index] {
            Arm::OneFull => full.first_token(computed[index].clone()),
            Arm::OneMixed | Arm::Two => mixed.first_token(computed[index].clone()),
        })?;
        let two_paths = &seconds[Arm::ALL.len() - 1];
        for ((arm, computed), seconds) in Arm::ALL.iter().zip(computed).zip(&seconds) {
            let mut row = about.clone();
            row.extend(params([
                ("arm", arm.name().into()),
                ("turn", (turn + 1).into()),
                ("prompt", computed.end.into()),
                ("computed", computed.len().into()),
                ("question_len", script.question_len.into()),
                ("answer_len", script.answer_len.into()),
                ("over_two_paths", ratio(two_paths, seconds).into()),
            ]));
            measured.push(Measurement {
                bench: NAME,
                case: format!("turn {}, {}", turn + 1, arm.name()),
                params: row,
                summary: Summary::of(seconds).times(1e3),
                unit: "ms",
                bytes: None,
                gbps: None,
            });
        }
    }
    Ok(measured)
}

/// Tokens and times by turn, and their sums in words.
pub fn findings(records: &[Record]) -> Findings {
    let of_arm = |arm: Arm| records.iter().filter(move |row| row.bench == NAME && row.params["arm"] == arm.name());
    let plot = |title: &str, y: &str, value: &dyn Fn(&Record) -> Option<f64>| Plot {
        title: title.into(),
        x: "turn".into(),
        y: y.into(),
        series: Arm::ALL
            .map(|arm| Series {
                name: arm.name().into(),
                points: of_arm(arm).filter_map(|row| Some((number(row, "turn")?, value(row)?))).collect(),
            })
            .into(),
        line: None,
    };
    let notes = Arm::ALL.map(|arm| {
        let tokens: f64 = of_arm(arm).filter_map(|row| number(row, "computed")).sum();
        let time: f64 = of_arm(arm).map(|row| row.median).sum();
        format!(
            "{}: {tokens} prompt tokens computed in all turns, {} ms to their first tokens",
            arm.name(),
            figure(time)
        )
    });
    Findings {
        columns: Findings::used(&COLUMNS, records),
        plots: vec![
            plot("Time to first token", "ms", &|row| Some(row.median)),
            plot("Prompt tokens computed", "tokens", &|row| number(row, "computed")),
        ],
        notes: notes.into(),
    }
}

const COLUMNS: [Column; 3] = [
    Column { title: "PROMPT", cell: |row| number(row, "prompt").map(|tokens| tokens.to_string()) },
    Column { title: "COMPUTED", cell: |row| number(row, "computed").map(|tokens| tokens.to_string()) },
    Column { title: "X TWO PATHS", cell: |row| number(row, "over_two_paths").map(figure) },
];

fn number(record: &Record, name: &str) -> Option<f64> {
    record.params.get(name).and_then(Value::as_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: Script = Script { turns: 3, question_len: 40, answer_len: 120 };

    #[test]
    fn one_path_computes_the_question_and_two_the_answer_before_it_as_well() {
        let of = |two_paths| [0, 1, 2].map(|turn| SCRIPT.computed(turn, two_paths));
        // Whole blocks of 64 before positions 159 and 319, and before 40 and 200.
        assert_eq!(of(false), [0..40, 128..200, 256..360]);
        assert_eq!(of(true), [0..40, 0..200, 192..360]);
    }

    #[test]
    fn each_turn_has_a_row_per_arm_with_its_speed_over_two_paths() {
        /// A millisecond a token.
        struct Clockwork;
        impl Conversation for Clockwork {
            fn first_token(&mut self, computed: Range<usize>) -> Result<f64, Error> {
                Ok(computed.len() as f64 / 1e3)
            }
        }
        let about = params([("model", "clockwork".into())]);
        let rows = measure(&mut Clockwork, &mut Clockwork, (SCRIPT, 2), &about).unwrap();
        assert_eq!(rows.len(), 9);
        let (one, two) = (&rows[3], &rows[5]);
        assert_eq!(
            (one.case.as_str(), two.case.as_str()),
            ("turn 2, one path, full", "turn 2, two paths, prompts mixed")
        );
        assert_eq!((one.summary.median, two.summary.median), (72.0, 200.0));
        assert_eq!((&one.params["computed"], &one.params["prompt"]), (&72.into(), &200.into()));
        assert!((one.params["over_two_paths"].as_f64().unwrap() - 200.0 / 72.0).abs() < 1e-12);
        assert_eq!(two.params["over_two_paths"], 1.0);
    }
}
