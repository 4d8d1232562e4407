//! The replay window of ESP against a slow model: a set of all numbers that came, and the definition
//! of the half that is not sent.

use std::collections::HashSet;

use proptest::prelude::*;
use roced_transport::wire::esp::{EspRefusal, Numbering, REPLAY_WINDOW, ReplayWindow};

/// Everything that came.
struct SlowWindow {
    numbering: Numbering,
    top: u64,
    came: HashSet<u64>,
}

impl SlowWindow {
    fn new(numbering: Numbering) -> Self {
        Self { numbering, top: 0, came: HashSet::new() }
    }

    /// The number with the half `low`: of the 2^32 numbers from the bottom of the window the only
    /// one that ends with it.
    fn number_of(&self, low: u32) -> Option<u64> {
        if self.numbering == Numbering::Short {
            return Some(low.into());
        }
        let bottom = i128::from(self.top) - i128::from(REPLAY_WINDOW) + 1;
        let ahead = (i128::from(low) - bottom).rem_euclid(1 << 32);
        u64::try_from(bottom + ahead).ok()
    }

    fn check(&self, low: u32) -> Result<u64, EspRefusal> {
        let number = self.number_of(low).filter(|number| *number > 0).ok_or(EspRefusal::BehindWindow)?;
        if number + u64::from(REPLAY_WINDOW) <= self.top {
            Err(EspRefusal::BehindWindow)
        } else if self.came.contains(&number) {
            Err(EspRefusal::Replayed)
        } else {
            Ok(number)
        }
    }

    fn mark(&mut self, number: u64) {
        self.came.insert(number);
        self.top = self.top.max(number);
    }
}

/// Both windows, of which each answer is compared.
struct Windows(ReplayWindow, SlowWindow);

impl Windows {
    fn new(numbering: Numbering) -> Self {
        Self(ReplayWindow::new(numbering), SlowWindow::new(numbering))
    }

    /// The packet `number` comes, and is authentic if the window takes it for that.
    fn receive(&mut self, number: u64) -> Result<u64, EspRefusal> {
        let Self(window, slow) = self;
        let checked = window.check(number as u32);
        let expected = slow.check(number as u32);
        assert_eq!(checked.map(|checked| checked.get()), expected, "number {number:#x}, top {:#x}", slow.top);
        if let Ok(sequence) = checked
            && sequence.get() == number
        {
            assert_eq!(window.mark(sequence), Ok(()));
            assert_eq!(window.mark(sequence), Err(EspRefusal::Replayed));
            slow.mark(number);
        }
        assert_eq!(window.top(), slow.top);
        expected
    }

    /// Moves both to `top`, in steps that the missing half allows. None but the last ends near a
    /// place where the low half begins again.
    fn advance(&mut self, top: u64) {
        while self.1.top < top {
            let next = top.min(self.1.top + (1 << 31) - 12_345);
            assert_eq!(self.receive(next), Ok(next));
        }
    }
}

/// Distances from the highest number: any near one, and the edges of window, words and ring.
fn distance() -> impl Strategy<Value = i64> {
    let edges = [0, 1, 63, 64, 65, 4031, 4032, 4033, 4094, 4095, 4096, 4097, 4160, 8191, 8192, 8193, 16_384];
    let edge = proptest::sample::select(edges.to_vec());
    prop_oneof![
        4 => -4200..70i64,
        2 => (edge, any::<bool>()).prop_map(|(edge, is_behind)| if is_behind { -edge } else { edge }),
        1 => -20_000..20_000i64,
        1 => proptest::sample::select(vec![-(1i64 << 32), -(1 << 32) + 4095, 1 << 31, (1 << 32) - 4096]),
    ]
}

proptest! {
    #[test]
    fn the_window_agrees_with_a_set_of_all_numbers(
        is_extended in any::<bool>(),
        start in prop_oneof![Just(0u64), 1..5000u64, (1u64 << 32) - 9000..(1 << 32) + 9000, (5u64 << 32) - 5000..(5 << 32) + 5000],
        distances in proptest::collection::vec(distance(), 1..400),
    ) {
        let numbering = if is_extended { Numbering::Extended } else { Numbering::Short };
        let most = if is_extended { u64::MAX } else { u64::from(u32::MAX) };
        let mut windows = Windows::new(numbering);
        windows.advance(start.min(most));
        for distance in distances {
            if let Some(number) = windows.1.top.checked_add_signed(distance).filter(|number| *number <= most) {
                let _any = windows.receive(number);
            }
        }
    }
}

/// Fills the window, looks at both its edges, and moves it on by one.
fn edges_at(numbering: Numbering, top: u64) {
    let width = u64::from(REPLAY_WINDOW);
    let mut windows = Windows::new(numbering);
    windows.advance(top);
    // The lowest number that may come, once; the one below, never.
    assert_eq!(windows.receive(top - width + 1), Ok(top - width + 1));
    assert_eq!(windows.receive(top - width + 1), Err(EspRefusal::Replayed));
    assert_ne!(windows.receive(top - width), Ok(top - width));
    assert_eq!(windows.receive(top), Err(EspRefusal::Replayed));
    for number in top - width + 2..top {
        assert_eq!(windows.receive(number), Ok(number));
    }
    assert_eq!(windows.receive(top + 1), Ok(top + 1));
    assert_ne!(windows.receive(top - width + 1), Ok(top - width + 1));
    assert_eq!(windows.receive(top - width + 2), Err(EspRefusal::Replayed));
    // A leap over all that the ring remembers leaves nothing marked.
    windows.advance(top + 20_000);
    for number in top + 20_000 - width + 1..top + 20_000 {
        assert_eq!(windows.receive(number), Ok(number));
    }
}

#[test]
fn the_window_is_exact_at_its_edges() {
    for top in [5000, 8191, 8192, 12_345, (1 << 31) - 1] {
        edges_at(Numbering::Short, top);
        edges_at(Numbering::Extended, top);
    }
}

/// The low half begins again within the window, at its upper and at its lower edge.
#[test]
fn extended_numbers_pass_the_end_of_the_low_half() {
    let width = u64::from(REPLAY_WINDOW);
    for around in [1 << 32, 3 << 32] {
        for top in [around - 1, around, around + 1, around + 64, around + width - 2, around + width - 1, around + width]
        {
            edges_at(Numbering::Extended, top);
        }
    }
}

#[test]
fn numbers_in_front_of_the_first_and_behind_the_last_are_refused() {
    let short = ReplayWindow::new(Numbering::Short);
    assert_eq!(short.check(0), Err(EspRefusal::BehindWindow));
    assert_eq!(short.check(u32::MAX).map(|number| number.get()), Ok(u64::from(u32::MAX)));
    // With extended numbers the highest low halves would be those of numbers below 0.
    let mut window = ReplayWindow::new(Numbering::Extended);
    for low in [0, u32::MAX, u32::MAX - REPLAY_WINDOW + 2] {
        assert_eq!(window.check(low), Err(EspRefusal::BehindWindow), "{low:#x}");
    }
    let farthest = window.check(u32::MAX - REPLAY_WINDOW + 1).expect("the farthest number ahead");
    assert_eq!(farthest.get(), u64::from(u32::MAX - REPLAY_WINDOW + 1));
    window.mark(farthest).expect("it did not come yet");
    assert_eq!(window.check(0).map(|number| number.get()), Ok(1 << 32));
    // Without them the low half does not begin again.
    let mut short = ReplayWindow::new(Numbering::Short);
    let last = short.check(u32::MAX).expect("it did not come yet");
    short.mark(last).expect("it did not come yet");
    assert_eq!([0, 1, 5].map(|low| short.check(low)), [Err(EspRefusal::BehindWindow); 3]);
}

/// Two packets of one number may both be checked before one of them is known to be authentic.
#[test]
fn of_two_checked_packets_with_one_number_the_first_is_marked() {
    let mut window = ReplayWindow::new(Numbering::Extended);
    let [first, second] = [9, 9].map(|low| window.check(low).expect("it did not come yet"));
    let late = window.check(1).expect("it did not come yet");
    assert_eq!(window.mark(first), Ok(()));
    assert_eq!(window.mark(second), Err(EspRefusal::Replayed));
    let far = window.check(1 << 20).expect("it did not come yet");
    assert_eq!(window.mark(far), Ok(()));
    assert_eq!(window.mark(late), Err(EspRefusal::BehindWindow));
}
