//! Events between the step that made them and the streams.

use crate::Event;
use crate::event::EventSender;
use crate::sync::{Mutex, MutexGuard};
use std::sync::{Arc, PoisonError};

type Letters = Vec<(EventSender, Event)>;

/// Collects the events of a step, and sends them in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    letters: Letters,
    posted: Arc<Mutex<Letters>>,
}

impl Outbox {
    /// Adds an event that is not sent yet.
    pub(crate) fn push(&mut self, events: &EventSender, event: Event) {
        self.letters.push((events.clone(), event));
    }

    /// Posts what there is, on the engine thread. Whoever calls what is returned sends it, and whatever was posted before it and
    /// is not sent yet.
    pub(crate) fn post(&mut self) -> Post {
        self.letters.iter().for_each(|(events, _)| events.announce());
        let is_single = self.letters.len() == 1;
        lock(&self.posted).append(&mut self.letters);
        Post { posted: Arc::clone(&self.posted), is_single }
    }
}

/// What was posted.
pub(crate) struct Post {
    posted: Arc<Mutex<Letters>>,
    is_single: bool,
}

impl Post {
    /// Whether one event was posted.
    pub(crate) fn is_single(&self) -> bool {
        self.is_single
    }

    /// Sends all that is posted, on any thread.
    pub(crate) fn send(self) {
        for (events, event) in lock(&self.posted).drain(..) {
            // A closed stream is noticed before the next step.
            events.send(event);
        }
    }
}

/// A thread that died while it sent leaves whole events behind.
fn lock(letters: &Mutex<Letters>) -> MutexGuard<'_, Letters> {
    letters.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventStream;
    use std::time::Duration;

    fn text(text: &str) -> Event {
        Event::Text { choice: 0, text: text.to_owned(), tokens: Vec::new(), logprobs: Vec::new() }
    }

    #[test]
    fn whoever_sends_last_sends_what_was_posted_first_too() {
        let (sender, mut stream) = EventStream::channel(&Arc::default());
        let mut outbox = Outbox::default();
        outbox.push(&sender, text("a"));
        let late = outbox.post();
        outbox.push(&sender, text("b"));
        outbox.push(&sender, text("c"));
        let soon = outbox.post();
        assert_eq!((late.is_single(), soon.is_single()), (true, false));
        soon.send();
        late.send();
        assert!(!outbox.post().is_single());
        for due in ["a", "b", "c"] {
            assert_eq!(stream.blocking_recv(), Some(text(due)));
        }
    }

    #[test]
    fn what_is_posted_is_waited_for_before_it_is_sent() {
        let delivery = Arc::default();
        let (sender, mut stream) = EventStream::channel(&delivery);
        let mut outbox = Outbox::default();
        delivery.begin();
        outbox.push(&sender, text("a"));
        let post = outbox.post();
        assert!(delivery.is_due());
        delivery.wait(Duration::from_millis(2));
        assert!(delivery.is_due(), "nothing was sent");
        post.send();
        stream.blocking_recv();
        assert!(!delivery.is_due());
        drop(stream);
        outbox.push(&sender, text("b"));
        outbox.post().send();
        assert!(!delivery.is_due(), "nobody is there to take it");
    }
}
