//! Requests whose traces are lost, and when to say so: a collector that is gone must not fill the log.

use std::time::{Duration, Instant};

/// From one line in the log to the next.
const PAUSE: Duration = Duration::from_secs(60);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    untold: usize,
    last_told: Option<Instant>,
}

impl Losses {
    pub(crate) fn add(&mut self, num_requests: usize) {
        self.untold += num_requests;
    }

    /// How many are to be told of at `now`.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<usize> {
        let is_due = self.last_told.is_none_or(|last| now.duration_since(last) >= PAUSE);
        if self.untold == 0 || !is_due {
            return None;
        }
        self.last_told = Some(now);
        self.rest()
    }

    /// How many were not told of.
    pub(crate) fn rest(&mut self) -> Option<usize> {
        Some(std::mem::take(&mut self.untold)).filter(|untold| *untold > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_at_once_and_then_once_a_minute() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut losses = Losses::default();
        assert_eq!(losses.take_due(after(0)), None);
        losses.add(3);
        assert_eq!(losses.take_due(after(1)), Some(3));
        losses.add(4);
        assert_eq!(losses.take_due(after(60)), None);
        losses.add(5);
        assert_eq!(losses.take_due(after(61)), Some(9));
        assert_eq!(losses.take_due(after(1000)), None, "nothing was lost since");
        losses.add(1);
        assert_eq!(losses.take_due(after(1001)), Some(1));
        losses.add(2);
        assert_eq!((losses.rest(), losses.rest()), (Some(2), None));
    }
}
