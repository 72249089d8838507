//! Steps as recorded launches: what a step asks for depends on its form and its numbers of rows alone, and all that differs
//! between two such steps lies in tables on the device. So the first step of a kind runs as it comes and takes what memory it
//! needs, the second one is recorded, and from then on a step is one upload and one replay.

use crate::cuda::device::{Device, DevicePtr};
use crate::{HeadLayout, KvLayout, StepInputs};
use std::collections::HashMap;

/// Rows of a step that is recorded, at most: larger ones take far longer than their launches.
const MAX_ROWS: usize = 64;
/// Kinds of steps that are kept; when there are more, all are forgotten, for most will not come again.
const MAX_KINDS: usize = 512;

/// What decides the launches of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    form: u64,
    rows: usize,
    logit_rows: usize,
    one_row_each: bool,
}

impl Kind {
    /// That of a step, if such are recorded.
    pub(super) fn of(inputs: StepInputs<'_>, form: Option<u64>) -> Option<Kind> {
        let rows = inputs.tables.num_rows();
        let kind = |form| Kind {
            form,
            rows,
            logit_rows: inputs.logit_rows.len(),
            one_row_each: inputs.tables.has_one_row_each(),
        };
        form.filter(|_| rows <= MAX_ROWS).map(kind)
    }
}

/// Working memory that launches are told of: where it moved, they are out of date.
pub(super) type WorkAddresses = [DevicePtr; 5];

/// What is known of the kinds of steps that were met.
pub(super) struct Graphs<D: Device> {
    met: HashMap<Kind, Option<Recorded<D>>>,
}

/// A recorded step.
pub(super) struct Recorded<D: Device> {
    pub(super) graph: D::Graph,
    pub(super) addresses: WorkAddresses,
    pub(super) checks: Checks,
}

/// What operations assert of the tables of a step before they launch, for replays, which launch without them.
#[derive(Debug, Clone, Default)]
pub(super) struct Checks {
    /// Heads and caches that the step's positions, slots and blocks are of.
    pub(super) caches: Option<(HeadLayout, KvLayout)>,
    /// Rows of the embedding table.
    pub(super) vocabulary: Option<usize>,
}

impl Checks {
    /// Asserts them of another step.
    pub(super) fn assert(&self, inputs: StepInputs<'_>) {
        let below = |values: &[u32], limit: usize| values.iter().all(|&value| (value as usize) < limit);
        if let Some((heads, layout)) = self.caches {
            inputs.tables.check(heads, layout);
        }
        assert_eq!(inputs.tokens.len(), inputs.tables.num_rows(), "a token for every row");
        assert!(self.vocabulary.is_none_or(|rows| below(inputs.tokens, rows)), "token ids are below the table's rows");
        assert!(below(inputs.logit_rows, inputs.tables.num_rows()), "rows that need logits exist");
    }
}

/// What to do with a step.
pub(super) enum Plan {
    /// Run it as it comes.
    Run,
    /// Record it, then replay that.
    Record,
    /// Replay what was recorded.
    Replay,
}

impl<D: Device> Default for Graphs<D> {
    fn default() -> Self {
        Graphs { met: HashMap::new() }
    }
}

impl<D: Device> Graphs<D> {
    /// What to do with a step of this kind.
    pub(super) fn plan(&mut self, kind: Kind, addresses: WorkAddresses) -> Plan {
        if self.met.len() >= MAX_KINDS && !self.met.contains_key(&kind) {
            self.met.clear();
        }
        match self.met.get(&kind) {
            Some(None) => Plan::Record,
            Some(Some(recorded)) if recorded.addresses == addresses => Plan::Replay,
            // It is new, or memory has moved and it may need more.
            None | Some(Some(_)) => {
                self.met.insert(kind, None);
                Plan::Run
            }
        }
    }

    /// Keeps what was recorded.
    pub(super) fn insert(&mut self, kind: Kind, recorded: Recorded<D>) {
        self.met.insert(kind, Some(recorded));
    }

    /// What was recorded of this kind.
    pub(super) fn get(&self, kind: Kind) -> Option<&Recorded<D>> {
        self.met.get(&kind)?.as_ref()
    }
}
