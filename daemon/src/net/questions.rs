//! Questions for neighbors: how many the kernel works on for us at a time, and the lines of those
//! that wait.
//!
//! The kernel's table has room for 1,024 neighbors of a family by default, of all programs of the
//! host, and an address that it looks for keeps its place there until it gives up, after 3 s, even
//! if there is no longer a path there. So a question counts for its [`Asker`] until the kernel's
//! verdict. Beyond the bound a destination waits in line, and is asked for in its turn.
//!
//! An address that did not answer keeps its place after the verdict, for up to 15 s, and with 512
//! entries the kernel forgets those of others that it has not heard of for 5 s. So this module has
//! it free the place of each such address, and counts the question until then.
//!
//! ```text
//!   question ──► bound reached? ──no──► open ──► verdict: answered ───────────► room for another
//!                    │ yes                ▲              └ silent ──► freed ──►
//!                    └──► line of asker ──┘  askers take turns; first questions before repeated ones
//! ```
//!
//! A destination that several askers follow waits in the line of each, and its question counts for
//! the one of which the turn comes first: the long line of one asker does not delay the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::{Duration, Instant},
};

use roced_types::AccountId;

use super::{
    follow::FollowId,
    neighbor::{Neighbor, NeighborKey},
};

/// Questions of an asker at a time, a sixteenth of the kernel's table.
pub const ASKED_MAX: usize = 64;

/// Those of them that may be repeated ones. The rest is for new destinations.
const ASKED_AGAIN_MAX: usize = ASKED_MAX / 2;

/// Questions of all askers at a time, a quarter of the table: with as many entries of others there
/// are 512, with which the kernel begins to forget some (`gc_thresh2`). Without freeing the places
/// of silent addresses it would be less than half as many: 256 questions of 3 s each leave
/// 256 * 15 / 3 = 1,280 of them within 15 s. An asker has at most as many as it leaves free, so
/// that each of many finds room.
const ASKED_IN_ALL_MAX: usize = 4 * ASKED_MAX;

/// After this time a question is over without a verdict: some were lost, or the kernel is set to
/// ask for longer than the 3 s of its defaults.
const VERDICT_MAX: Duration = Duration::from_secs(10);

/// A question that the kernel refuses, its table being full, counts for this time.
const REFUSED_KEPT: Duration = Duration::from_secs(1);

/// A silent address of which the kernel does not free the place counts for this time: it frees it
/// by itself every 15 s (half of `base_reachable_time`).
const SILENT_KEPT: Duration = Duration::from_secs(15);

/// Accounts with questions that waited that are remembered.
const REMEMBERED: usize = 1024;

/// Cause of a question, for which it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asker {
    /// A program of a user: a queue pair, an address handle, an address to be resolved.
    Account(AccountId),
    /// An answer of the connection manager that any host can cause.
    AnyHost,
    /// An answer of a program to an unknown peer, by the connection manager.
    AnsweredUnknown,
    /// An answer of the connection manager to a known peer.
    KnownPeer,
}

/// Order of the questions of an asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Priority {
    /// The neighbor was known: paths to it are in use.
    Lost,
    New,
    /// The neighbor did not answer before.
    Again,
}

/// Place in the line of an asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    priority: Priority,
    number: u64,
}

#[derive(Debug)]
struct OpenQuestion {
    asker: Asker,
    is_repeated: bool,
    until: Instant,
    stage: QuestionStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuestionStage {
    /// The kernel works on it.
    Asked,
    /// The kernel has given up, and keeps the place of the address.
    Silent,
}

#[derive(Debug, Default)]
struct AskerState {
    open: usize,
    /// Repeated ones of these.
    repeated: usize,
    line: BTreeMap<Place, FollowId>,
}

/// All questions that are open, and those that wait.
#[derive(Debug, Default)]
pub(super) struct Questions {
    open: BTreeMap<NeighborKey, OpenQuestion>,
    by_end: BTreeSet<(Instant, NeighborKey)>,
    /// Silent ones of which the place is to be freed.
    silent: Vec<NeighborKey>,
    /// Those of which the place was freed. The kernel's news of it are still to come, and are no
    /// verdict on a later question.
    freed: BTreeSet<NeighborKey>,
    askers: BTreeMap<Asker, AskerState>,
    /// Askers with a line.
    waiting: BTreeSet<Asker>,
    /// The asker of the last turn.
    last_served: Option<Asker>,
    /// Some that have room were left for the next step, since then.
    left_since: Option<Instant>,
    last_number: u64,
    /// How many had to wait, by account.
    delayed: BTreeMap<AccountId, u64>,
}

impl Questions {
    /// The kernel works on a question for this neighbor.
    pub(super) fn is_open(&self, neighbor: NeighborKey) -> bool {
        self.open.get(&neighbor).is_some_and(|question| question.stage == QuestionStage::Asked)
    }

    /// The first of `askers` with room for one more question.
    pub(super) fn with_room(&self, mut askers: impl Iterator<Item = Asker>, priority: Priority) -> Option<Asker> {
        askers.find(|asker| self.has_room(*asker, priority))
    }

    fn has_room(&self, asker: Asker, priority: Priority) -> bool {
        let (open, repeated) = self.askers.get(&asker).map_or((0, 0), |state| (state.open, state.repeated));
        let may_repeat = priority != Priority::Again || repeated < ASKED_AGAIN_MAX;
        may_repeat && open < ASKED_MAX.min(ASKED_IN_ALL_MAX - self.open.len())
    }

    /// The kernel was asked for a neighbor, for which no question is open. `is_refused`: it has no
    /// room for it.
    pub(super) fn open(
        &mut self,
        neighbor: NeighborKey,
        asker: Asker,
        priority: Priority,
        is_refused: bool,
        now: Instant,
    ) {
        assert!(!self.is_open(neighbor), "it is asked for once");
        // A silent one has its place again.
        self.close(neighbor);
        let until = now + if is_refused { REFUSED_KEPT } else { VERDICT_MAX };
        let is_repeated = priority == Priority::Again;
        self.open.insert(neighbor, OpenQuestion { asker, is_repeated, until, stage: QuestionStage::Asked });
        self.by_end.insert((until, neighbor));
        self.change(asker, |state| {
            state.open += 1;
            state.repeated += usize::from(is_repeated);
        });
    }

    /// The kernel has a verdict about a neighbor, or has forgotten it. `is_silent`: it did not
    /// answer, and keeps its place.
    pub(super) fn on_verdict(&mut self, neighbor: NeighborKey, is_silent: bool) {
        if self.freed.contains(&neighbor) {
            return;
        }
        match self.open.get_mut(&neighbor) {
            Some(question) if is_silent => {
                if question.stage == QuestionStage::Asked {
                    question.stage = QuestionStage::Silent;
                    self.silent.push(neighbor);
                }
            }
            _ => self.close(neighbor),
        }
    }

    /// Number of those of which the place is to be freed.
    pub(super) const fn silent(&self) -> usize {
        self.silent.len()
    }

    /// Those of which the place is to be freed.
    pub(super) fn take_silent(&mut self) -> Vec<NeighborKey> {
        let mut silent = std::mem::take(&mut self.silent);
        silent.retain(|neighbor| self.open.get(neighbor).is_some_and(|it| it.stage == QuestionStage::Silent));
        silent
    }

    /// The kernel has freed the place of a silent one, or keeps it.
    pub(super) fn on_freeing(&mut self, neighbor: NeighborKey, is_freed: bool, now: Instant) {
        if is_freed {
            self.freed.insert(neighbor);
            return self.close(neighbor);
        }
        let Some(question) = self.open.get_mut(&neighbor) else { return };
        self.by_end.remove(&(question.until, neighbor));
        question.until = now + SILENT_KEPT;
        self.by_end.insert((question.until, neighbor));
    }

    /// All news of the kernel up to now were read.
    pub(super) fn on_news_read(&mut self) {
        self.freed.clear();
    }

    fn close(&mut self, neighbor: NeighborKey) {
        let Some(OpenQuestion { asker, is_repeated, until, .. }) = self.open.remove(&neighbor) else { return };
        self.by_end.remove(&(until, neighbor));
        self.change(asker, |state| {
            state.open -= 1;
            state.repeated -= usize::from(is_repeated);
        });
    }

    /// Ends the questions that are over.
    pub(super) fn on_time(&mut self, now: Instant) {
        while let Some((_, neighbor)) = self.by_end.first().copied().filter(|(until, _)| *until <= now) {
            self.close(neighbor);
        }
    }

    /// Verdicts may have been lost, and all neighbors were read anew: ends the questions that the
    /// kernel does not work on.
    pub(super) fn on_lost_news(&mut self, neighbor_of: impl Fn(NeighborKey) -> Option<Neighbor>) {
        self.on_news_read();
        let all: Vec<_> = self.open.keys().map(|neighbor| (*neighbor, neighbor_of(*neighbor))).collect();
        for (neighbor, seen) in all.into_iter().filter(|(_, seen)| *seen != Some(Neighbor::Asked)) {
            self.on_verdict(neighbor, seen == Some(Neighbor::Silent));
        }
    }

    /// A place at the end of lines.
    pub(super) fn last_place(&mut self, priority: Priority) -> Place {
        self.last_number += 1;
        Place { priority, number: self.last_number }
    }

    /// A destination waits in the line of an asker.
    pub(super) fn wait(&mut self, asker: Asker, place: Place, follow: FollowId) {
        self.change(asker, |state| state.line.insert(place, follow));
        if let Asker::Account(account) = asker {
            *self.delayed.entry(account).or_default() += 1;
            if self.delayed.len() > REMEMBERED {
                self.delayed.pop_first();
            }
        }
    }

    /// A destination waits no more in the line of an asker.
    pub(super) fn leave(&mut self, asker: Asker, place: Place) {
        self.change(asker, |state| state.line.remove(&place));
    }

    /// The destination of which the turn is, and the asker. It keeps its places until
    /// [`Self::leave`].
    pub(super) fn next(&mut self) -> Option<(Asker, FollowId)> {
        let behind = self.last_served.map_or(Bound::Unbounded, Bound::Excluded);
        let turns = self.waiting.range((behind, Bound::Unbounded)).chain(&self.waiting);
        let first = |asker: &Asker| {
            let (place, follow) = self.askers.get(asker)?.line.first_key_value()?;
            self.has_room(*asker, place.priority).then_some((*asker, *follow))
        };
        let next = turns.into_iter().find_map(first)?;
        self.last_served = Some(next.0);
        Some(next)
    }

    /// Since when there may be some in line that have room: a step ended before all were asked, or
    /// one joined the line.
    pub(super) fn set_left(&mut self, since: Option<Instant>) {
        self.left_since = since;
    }

    /// When something is to be done.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.by_end.first().map(|(until, _)| *until).into_iter().chain(self.left_since).min()
    }

    /// Questions that had to wait, by account.
    pub(super) const fn delayed(&self) -> &BTreeMap<AccountId, u64> {
        &self.delayed
    }

    fn change<T>(&mut self, asker: Asker, act: impl FnOnce(&mut AskerState) -> T) {
        let state = self.askers.entry(asker).or_default();
        act(state);
        let (has_line, is_unused) = (!state.line.is_empty(), state.open == 0 && state.line.is_empty());
        if has_line {
            self.waiting.insert(asker);
        } else {
            self.waiting.remove(&asker);
        }
        if is_unused {
            self.askers.remove(&asker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    const fn account(number: u32) -> Asker {
        Asker::Account(AccountId(number))
    }

    fn neighbor(number: u32) -> NeighborKey {
        (1, std::net::Ipv4Addr::from_bits(number).into())
    }

    /// Questions with as many of an asker open as it gets; their number.
    fn ask_all(questions: &mut Questions, asker: Asker, priority: Priority) -> usize {
        let base = questions.last_number as u32 + 1000 * questions.open.len() as u32;
        let mut asked = 0;
        while questions.with_room(iter::once(asker), priority).is_some() {
            questions.open(neighbor(base + asked), asker, priority, false, Instant::now());
            asked += 1;
        }
        asked as usize
    }

    /// Puts a destination in line; its place.
    fn wait(questions: &mut Questions, asker: Asker, priority: Priority, follow: u64) -> Place {
        let place = questions.last_place(priority);
        questions.wait(asker, place, FollowId::new(follow));
        place
    }

    #[test]
    fn each_asker_finds_room_beside_any_others() {
        let mut questions = Questions::default();
        let asked: Vec<usize> = (0..9).map(|number| ask_all(&mut questions, account(number), Priority::New)).collect();
        assert_eq!(asked, [64, 64, 64, 32, 16, 8, 4, 2, 1]);
        assert!(questions.open.len() < 256, "three quarters of the kernel's table are for others");
        assert_eq!(ask_all(&mut questions, Asker::AnyHost, Priority::New), 1);
        assert_eq!(ask_all(&mut questions, Asker::KnownPeer, Priority::New), 0, "that was the last one");
    }

    #[test]
    fn repeated_questions_leave_room_for_first_ones() {
        let mut questions = Questions::default();
        assert_eq!(ask_all(&mut questions, account(1), Priority::Again), ASKED_AGAIN_MAX);
        assert_eq!(ask_all(&mut questions, account(1), Priority::New), ASKED_MAX - ASKED_AGAIN_MAX);
        let again = wait(&mut questions, account(1), Priority::Again, 1);
        let first = wait(&mut questions, account(1), Priority::New, 2);
        assert_eq!(questions.next(), None);
        questions.on_verdict(*questions.open.last_key_value().expect("some are open").0, false);
        assert_eq!(questions.next(), Some((account(1), FollowId::new(2))), "first ones come first");
        let lost = wait(&mut questions, account(1), Priority::Lost, 3);
        assert_eq!(questions.next(), Some((account(1), FollowId::new(3))), "before them paths in use");
        questions.leave(account(1), lost);
        questions.leave(account(1), first);
        assert_eq!(questions.next(), None, "there are too many for repeated ones");
        questions.on_lost_news(|_| None);
        assert_eq!(questions.next(), Some((account(1), FollowId::new(1))));
        questions.leave(account(1), again);
        assert!(questions.askers.is_empty() && questions.waiting.is_empty() && questions.by_end.is_empty());
    }

    /// Half of the places at a time, whichever these are.
    #[test]
    fn first_questions_take_no_places_of_repeated_ones_but_their_own() {
        let mut questions = Questions::default();
        for number in 0..ASKED_AGAIN_MAX as u32 + 8 {
            questions.open(neighbor(number), account(1), Priority::New, false, Instant::now());
        }
        let left = ASKED_MAX - ASKED_AGAIN_MAX - 8;
        assert_eq!(ask_all(&mut questions, account(1), Priority::Again), left);
        let state = &questions.askers[&account(1)];
        assert_eq!((state.open, state.repeated), (ASKED_MAX, left));
    }

    #[test]
    fn askers_take_turns_and_each_has_an_order_of_its_own() {
        let mut questions = Questions::default();
        let mut places = BTreeMap::new();
        for (asker, follow) in [(1, 10), (1, 11), (1, 12), (2, 20), (2, 21), (3, 30)] {
            places.insert(follow, (account(asker), wait(&mut questions, account(asker), Priority::New, follow)));
        }
        let order: Vec<_> = iter::from_fn(|| {
            let (_, next) = questions.next()?;
            let follow = *places.keys().find(|follow| FollowId::new(**follow) == next).expect("it waits");
            let (asker, place) = places.remove(&follow)?;
            questions.leave(asker, place);
            Some(follow)
        })
        .collect();
        assert_eq!(order, [10, 20, 30, 11, 21, 12]);
        assert_eq!(
            *questions.delayed(),
            [(1, 3), (2, 2), (3, 1)].map(|(number, count)| (AccountId(number), count)).into()
        );
    }

    #[test]
    fn a_silent_neighbor_counts_until_its_place_is_freed() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        assert_eq!(ask_all(&mut questions, account(1), Priority::New), ASKED_MAX);
        let all: Vec<_> = questions.open.keys().copied().collect();
        for neighbor in &all {
            questions.on_verdict(*neighbor, true);
            questions.on_verdict(*neighbor, true);
        }
        assert_eq!(ask_all(&mut questions, account(1), Priority::New), 0);
        assert!(!questions.is_open(all[0]), "it may be asked for again");
        questions.open(all[0], account(1), Priority::New, false, now);
        assert_eq!(questions.take_silent(), all[1..]);
        questions.on_freeing(all[1], true, now);
        questions.on_freeing(all[2], false, now);
        assert_eq!(questions.open.len(), ASKED_MAX - 1);
        questions.open(all[1], account(1), Priority::New, false, now);
        questions.on_verdict(all[1], true);
        questions.on_verdict(all[1], false);
        assert!(questions.is_open(all[1]), "these news are of the earlier question");
        questions.on_news_read();
        questions.on_verdict(all[1], false);
        assert!(!questions.is_open(all[1]));
        questions.on_time(now + SILENT_KEPT - Duration::from_millis(1));
        assert_eq!(questions.open.keys().copied().collect::<Vec<_>>(), [all[2]]);
        questions.on_time(now + SILENT_KEPT);
        assert!(questions.open.is_empty() && questions.askers.is_empty() && questions.by_end.is_empty());
    }

    #[test]
    fn a_question_without_a_verdict_ends_in_time_and_a_refused_one_sooner() {
        let (mut questions, now) = (Questions::default(), Instant::now());
        questions.open(neighbor(1), account(1), Priority::New, false, now);
        questions.open(neighbor(2), account(1), Priority::New, true, now);
        assert_eq!(questions.deadline(), Some(now + REFUSED_KEPT));
        questions.on_time(now + REFUSED_KEPT);
        assert_eq!((questions.is_open(neighbor(1)), questions.is_open(neighbor(2))), (true, false));
        questions.on_time(now + VERDICT_MAX);
        assert_eq!((questions.is_open(neighbor(1)), questions.deadline()), (false, None));
        questions.set_left(Some(now));
        assert_eq!(questions.deadline(), Some(now));
    }
}
