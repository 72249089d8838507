use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

/// A book of models of these bytes, of which the first is loaded.
fn book(max_loaded: usize, max_bytes: u64, models: &[u64]) -> (Book, Instant) {
    let (mut book, now) = (Book::new(max_loaded, max_bytes, PATIENCE), Instant::now());
    models.iter().for_each(|&bytes| book.add(bytes));
    book.begin(0);
    book.loaded(0, models[0], now);
    (book, now)
}

/// Has a model loaded that is waited for.
fn load(book: &mut Book, model: usize, now: Instant) {
    assert_eq!(book.next(now), Some(Action::Load(model)));
    book.loaded(model, book.entries[model].bytes, now);
}

#[test]
fn a_model_is_loaded_once_for_all_who_wait() {
    let (mut book, now) = book(9, 100, &[10, 10]);
    assert!(book.arrive(0, now));
    assert!(!book.arrive(1, now) && !book.arrive(1, now));
    assert_eq!(book.next(now), Some(Action::Load(1)));
    assert!(!book.arrive(1, now));
    assert_eq!(book.next(now), None, "it is being loaded");
    book.loaded(1, 10, now);
    assert_eq!((book.entries[1].users, book.entries[1].waiting), (3, 0));
    assert!(book.arrive(1, now));
    assert_eq!(book.next(now), None);
}

#[test]
fn the_least_recently_used_model_makes_room_and_no_more_than_needed() {
    let (mut book, now) = book(9, 30, &[10, 10, 10, 10]);
    for model in [1, 2] {
        book.arrive(model, now);
        load(&mut book, model, now);
        book.release(model);
    }
    assert!(book.arrive(0, now));
    book.release(0);
    assert!(!book.arrive(3, now));
    assert_eq!(book.next(now), Some(Action::Unload(1)), "0 was used after it");
    assert_eq!(book.next(now), None);
    book.unloaded(1);
    load(&mut book, 3, now);
    assert_eq!(book.next(now), None);
    assert_eq!(book.latest(), Some(3));
}

#[test]
fn the_number_of_models_is_a_limit_of_its_own() {
    let (mut book, now) = book(1, u64::MAX, &[1, 1]);
    book.arrive(1, now);
    assert_eq!(book.next(now), Some(Action::Unload(0)));
    book.unloaded(0);
    load(&mut book, 1, now);
}

#[test]
fn a_model_larger_than_the_limit_is_loaded_alone() {
    let (mut book, now) = book(9, 30, &[10, 50]);
    book.arrive(1, now);
    assert_eq!(book.next(now), Some(Action::Unload(0)));
    book.unloaded(0);
    load(&mut book, 1, now);
}

#[test]
fn nobody_is_unloaded_where_that_would_not_be_enough() {
    let (mut book, now) = book(9, 30, &[10, 10, 25]);
    book.arrive(1, now);
    load(&mut book, 1, now);
    book.arrive(2, now);
    assert_eq!(book.next(now), None, "0 is idle and too small, 1 is used");
    book.release(1);
    assert_eq!(book.next(now), Some(Action::Unload(0)));
}

#[test]
fn who_fits_need_not_wait_for_who_does_not() {
    let (mut book, now) = book(9, 30, &[20, 20, 5]);
    assert!(book.arrive(0, now));
    book.arrive(1, now);
    book.arrive(2, now);
    load(&mut book, 2, now);
}

#[test]
fn who_waits_for_long_is_overtaken_by_nobody_and_has_the_busy_closed() {
    let (mut book, now) = book(9, 30, &[20, 20, 5]);
    assert!(book.arrive(0, now));
    book.arrive(1, now);
    let later = now + PATIENCE;
    book.arrive(2, later);
    assert_eq!(book.next(later), None, "2 would fit");
    assert!(!book.arrive(0, later), "it is to make room");
    book.release(0);
    assert_eq!(book.next(later), Some(Action::Unload(0)));
    book.unloaded(0);
    load(&mut book, 1, later);
    assert!(book.arrive(1, later), "it has not been loaded for long, and nobody has waited since");
    load(&mut book, 2, later);
    assert_eq!(book.next(later), None);
    assert!(!book.arrive(1, later + PATIENCE), "now 0 has waited for it");
}

#[test]
fn who_was_closed_out_is_let_in_when_the_other_has_given_up() {
    let (mut book, now) = book(1, 30, &[20, 20]);
    assert!(book.arrive(0, now));
    book.arrive(1, now);
    let later = now + PATIENCE;
    assert!(!book.arrive(0, later));
    assert!(!book.readmit(0, later));
    book.give_up(1);
    assert!(book.readmit(0, later));
    assert_eq!((book.entries[0].users, book.entries[0].waiting), (2, 0));
}

#[test]
fn after_a_failure_nobody_waits_and_the_next_request_tries_again() {
    let (mut book, now) = book(9, 30, &[10, 10]);
    book.arrive(1, now);
    assert_eq!(book.next(now), Some(Action::Load(1)));
    book.failed(1);
    assert_eq!(book.next(now), None);
    book.arrive(1, now);
    load(&mut book, 1, now);
}

#[test]
fn a_dismissed_model_goes_once_nobody_uses_it_and_comes_back_for_those_who_wait() {
    let (mut book, now) = book(9, 30, &[10, 10]);
    assert!(book.arrive(0, now));
    assert!(book.dismiss(0));
    assert_eq!(book.next(now), None, "it is used");
    assert!(!book.arrive(0, now), "it takes no new requests");
    assert!(!book.readmit(0, now));
    book.arrive(1, now);
    load(&mut book, 1, now);
    book.release(0);
    assert_eq!(book.next(now), Some(Action::Unload(0)));
    assert!(book.dismiss(0), "it still takes memory");
    book.unloaded(0);
    assert!(!book.dismiss(0) && !book.is_dismissed(0));
    load(&mut book, 0, now);
    assert_eq!(book.entries[0].users, 1);
    assert_eq!(book.next(now), None, "it was dismissed once");
}

#[test]
fn a_model_that_is_dismissed_while_it_loads_serves_those_who_wait_first() {
    let (mut book, now) = book(9, 30, &[10, 10]);
    book.arrive(1, now);
    assert_eq!(book.next(now), Some(Action::Load(1)));
    assert!(book.dismiss(1));
    book.loaded(1, 10, now);
    assert_eq!(book.entries[1].users, 1);
    assert_eq!(book.next(now), None);
    book.release(1);
    assert_eq!(book.next(now), Some(Action::Unload(1)));
    book.unloaded(1);
    book.arrive(1, now);
    assert_eq!(book.next(now), Some(Action::Load(1)));
    assert!(book.dismiss(1));
    book.failed(1);
    assert!(!book.is_dismissed(1));
}

#[test]
fn who_dismisses_an_idle_model_disturbs_nobody() {
    let (mut book, now) = book(9, 30, &[10]);
    assert!(book.arrive(0, now));
    book.dismiss_idle(0);
    assert!(book.arrive(0, now));
    book.release(0);
    book.release(0);
    assert_eq!(book.next(now), None, "it was used then");
    book.dismiss_idle(0);
    assert_eq!(book.next(now), Some(Action::Unload(0)));
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }
}

/// A book in use, and what must hold of it.
struct Run {
    book: Book,
    now: Instant,
    /// By model: what the book should say.
    users: Vec<usize>,
    waiting: Vec<usize>,
    under_way: Option<Action>,
}

impl Run {
    fn check(&self) {
        let taken: Vec<&Entry> = self.book.entries.iter().filter(|entry| entry.stage != Stage::Unloaded).collect();
        let bytes: u64 = taken.iter().map(|entry| entry.bytes).sum();
        assert!(taken.len() <= self.book.max_loaded);
        assert!(bytes <= self.book.max_bytes || taken.len() == 1, "{bytes} bytes of {}", self.book.max_bytes);
        let moving = taken.iter().filter(|entry| matches!(entry.stage, Stage::Loading | Stage::Unloading)).count();
        assert_eq!(moving, usize::from(self.under_way.is_some()));
        for (entry, (&users, &waiting)) in self.book.entries.iter().zip(self.users.iter().zip(&self.waiting)) {
            assert_eq!((entry.users, entry.waiting), (users, waiting));
            assert_eq!(entry.wanted.is_some(), waiting > 0);
            assert!(users == 0 || entry.stage == Stage::Loaded, "{entry:?} is used");
        }
    }

    /// Does what the caller of a book does after every event.
    fn advance(&mut self) {
        if let Some(action) = self.book.next(self.now) {
            assert_eq!(self.under_way.replace(action), None);
            if let Action::Unload(model) = action {
                assert_eq!(self.users[model], 0, "a busy model is unloaded");
            }
        }
        for model in 0..self.users.len() {
            if self.book.readmit(model, self.now) {
                self.users[model] += std::mem::take(&mut self.waiting[model]);
            }
        }
        self.check();
    }

    fn arrive(&mut self, model: usize) {
        let count = if self.book.arrive(model, self.now) { &mut self.users } else { &mut self.waiting };
        count[model] += 1;
        self.advance();
    }

    fn end_action(&mut self, fails: bool) {
        match self.under_way.take() {
            Some(Action::Load(model)) if fails => {
                self.book.failed(model);
                self.waiting[model] = 0;
            }
            Some(Action::Load(model)) => {
                self.book.loaded(model, self.book.entries[model].bytes, self.now);
                self.users[model] += std::mem::take(&mut self.waiting[model]);
            }
            Some(Action::Unload(model)) => self.book.unloaded(model),
            None => {}
        }
        self.advance();
    }

    fn release(&mut self, model: usize) {
        if self.users[model] > 0 {
            self.users[model] -= 1;
            self.book.release(model);
            self.advance();
        }
    }

    fn dismiss(&mut self, model: usize, even_busy: bool) {
        if even_busy {
            self.book.dismiss(model);
        } else {
            self.book.dismiss_idle(model);
        }
        self.advance();
    }

    fn give_up(&mut self, model: usize) {
        if self.waiting[model] > 0 {
            self.waiting[model] -= 1;
            self.book.give_up(model);
            self.advance();
        }
    }
}

#[test]
fn under_any_order_of_events_limits_are_kept_and_everyone_is_served() {
    for seed in 0..1000 {
        let mut random = Random(seed);
        let num_models = 2 + random.below(4);
        let sizes: Vec<u64> = (0..num_models).map(|_| 1 + random.below(20) as u64).collect();
        let (book, now) = book(1 + random.below(4), 1 + random.below(40) as u64, &sizes);
        let (users, waiting) = (vec![0; num_models], vec![0; num_models]);
        let mut run = Run { book, now, users, waiting, under_way: None };
        for _ in 0..300 {
            run.now += Duration::from_secs(random.below(4) as u64);
            let model = random.below(num_models);
            match random.below(9) {
                0..=2 => run.arrive(model),
                3 | 4 => run.release(model),
                5 => run.give_up(model),
                6 => run.end_action(random.below(5) == 0),
                7 => run.dismiss(model, random.below(2) == 0),
                _ => run.advance(),
            }
        }
        // Everybody who waits is served, although all models are asked for without a pause.
        let mut served = vec![false; num_models];
        for model in 0..num_models {
            run.arrive(model);
        }
        for _ in 0..100 * num_models {
            run.now += Duration::from_secs(3);
            run.end_action(false);
            for (model, served) in served.iter_mut().enumerate() {
                let before = run.users[model];
                *served |= before > 0;
                run.arrive(model);
                (0..before).for_each(|_| run.release(model));
            }
        }
        assert!(served.iter().all(|served| *served), "seed {seed}: {served:?}");
        // And where nobody asks any more, all come to rest.
        for _ in 0..100 * num_models {
            run.now += Duration::from_secs(3);
            run.end_action(false);
            for model in 0..num_models {
                (0..run.users[model]).for_each(|_| run.release(model));
            }
        }
        assert_eq!((run.waiting.iter().sum::<usize>(), run.under_way), (0, None), "seed {seed}");
    }
}
