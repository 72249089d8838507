//! Events between the step that made them and the streams.

use crate::event::EventSender;
use crate::sync::{Mutex, MutexGuard};
use crate::{Event, handoff};
use std::sync::{Arc, PoisonError};

/// Readers that one thread goes on with. Each takes 50 us or so; `handoff.rs` has what more would gain.
const MAX_READERS: usize = 8;

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

    /// Posts what there is. Whoever sends what is returned sends whatever was posted before it and is not sent yet as well.
    pub(crate) fn post(&mut self) -> Post {
        let num_letters = self.letters.len();
        let are_texts = self.letters.iter().all(|(_, event)| matches!(event, Event::Text { .. }));
        let is_short_work = are_texts && (1..=MAX_READERS).contains(&num_letters);
        lock(&self.posted).append(&mut self.letters);
        Post { posted: Arc::clone(&self.posted), is_short_work }
    }
}

/// What was posted.
pub(crate) struct Post {
    posted: Arc<Mutex<Letters>>,
    is_short_work: bool,
}

impl Post {
    /// Whether those who read it are few and have text to pass on, no more: an answer that ends makes room for other work.
    pub(crate) fn is_short_work(&self) -> bool {
        self.is_short_work
    }

    /// Sends all that is posted, on the engine thread, which [`Delivery::wait`](crate::delivery::Delivery::wait)s for it later.
    pub(crate) fn send(self) {
        for (events, event) in lock(&self.posted).drain(..) {
            events.announce();
            // A closed stream is noticed before the next step.
            events.send(event);
        }
    }

    /// Sends all that is posted, on a thread that has time for those who read it. Nobody waits for it.
    pub(crate) fn hand_off(self) {
        let send = || lock(&self.posted).drain(..).for_each(|(events, event)| events.send(event));
        if !handoff::hand_off(send) {
            // Who was woken up otherwise may need this core.
            std::thread::yield_now();
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
    use crate::{EventStream, Usage};

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
        outbox.push(&sender, Event::Done(Usage::default()));
        let soon = outbox.post();
        assert_eq!((late.is_short_work(), soon.is_short_work()), (true, false));
        soon.send();
        late.hand_off();
        assert!(!outbox.post().is_short_work());
        for due in [text("a"), text("b"), Event::Done(Usage::default())] {
            assert_eq!(stream.blocking_recv(), Some(due));
        }
    }

    #[test]
    fn text_for_a_few_is_short_work() {
        let (sender, _stream) = EventStream::channel(&Arc::default());
        let mut outbox = Outbox::default();
        let mut is_short_work = |num| {
            (0..num).for_each(|_| outbox.push(&sender, text("a")));
            outbox.post().is_short_work()
        };
        assert_eq!([0, 1, MAX_READERS, MAX_READERS + 1].map(&mut is_short_work), [false, true, true, false]);
    }

    #[test]
    fn what_the_engine_sends_is_waited_for_and_what_is_handed_off_is_not() {
        let delivery = Arc::default();
        let (sender, mut stream) = EventStream::channel(&delivery);
        let mut outbox = Outbox::default();
        let mut post = |word| {
            outbox.push(&sender, text(word));
            outbox.post()
        };
        delivery.begin();
        post("a").hand_off();
        assert!(!delivery.is_due());
        post("b").send();
        assert!(delivery.is_due());
        stream.blocking_recv();
        assert!(!delivery.is_due());
        drop(stream);
        post("c").send();
        assert!(!delivery.is_due(), "nobody is there to take it");
    }
}
