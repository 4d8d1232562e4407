//! A program that ends well has its last message; that the ACK of it arrives is no longer its
//! business. Where the network loses that ACK, rxe's queue pair is gone when the message comes
//! again, no answer comes, and its sender is told "transport retry exceeded": both ends and the
//! network did only permitted things. The output of both does not tell that from a peer that never
//! answered; the captures do (`check/last_ack.rs`). The other way round it is a failure: roced's
//! removed queue pairs acknowledge repetitions.

use crate::{process::Ended, scenario::Side};

/// Linux's program has ended well, and roced's, left behind, with a request without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parting {
    pub(crate) left_behind: Side,
    /// When the other one was seen to have ended, since the epoch: some time after its queue pairs
    /// were gone.
    pub(crate) other_ended_ns: u64,
}

impl Parting {
    /// Whether the output of client and server shows that.
    pub(crate) fn of(client: Side, [asked, served]: [&Ended; 2]) -> Option<Self> {
        let [ended, other] = if client == Side::Roced { [asked, served] } else { [served, asked] };
        let waits_in_vain = has_given_up(ended) && is_good(other);
        waits_in_vain.then_some(Self { left_behind: Side::Roced, other_ended_ns: other.at_ns })
    }
}

/// Whether a stock program did its task.
pub(crate) fn is_good(ended: &Ended) -> bool {
    ended.code == 0 && !has_wrong_data(ended)
}

fn has_wrong_data(ended: &Ended) -> bool {
    ended.output.contains("invalid data")
}

/// It had no answer for as often as it asked.
fn has_given_up(ended: &Ended) -> bool {
    let is_told = ["transport retry counter exceeded", "Failed status 12"].iter().any(|it| ended.output.contains(it));
    !has_wrong_data(ended) && ended.code != 0 && is_told
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAVE_UP: &str = "Failed status transport retry counter exceeded (12) for wr_id 2\n";

    fn ended(code: i32, output: &str, at_ns: u64) -> Ended {
        Ended { code, output: output.to_owned(), at_ns }
    }

    #[test]
    fn the_side_left_behind_gave_up_and_the_other_ended_well() {
        let (good, lost) = (ended(0, "50 iters", 10), ended(1, GAVE_UP, 20));
        let parting = Parting { left_behind: Side::Roced, other_ended_ns: 10 };
        assert_eq!(Parting::of(Side::Rxe, [&good, &lost]), Some(parting.clone()));
        assert_eq!(Parting::of(Side::Roced, [&lost, &good]), Some(parting));
        let perftest = ended(1, " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n", 20);
        assert!(Parting::of(Side::Roced, [&perftest, &good]).is_some());
    }

    #[test]
    fn no_other_ending_is_a_parting() {
        let (good, lost) = (ended(0, "50 iters", 10), ended(1, GAVE_UP, 20));
        for (asked, served) in [
            (&good, &good),
            // The other side failed as well.
            (&lost, &lost),
            (&ended(1, "", 10), &lost),
            (&ended(0, "invalid data in page 3", 10), &lost),
            // Something else was wrong.
            (&good, &ended(1, "Failed status remote access error (10) for wr_id 2", 20)),
            (&good, &ended(1, &format!("invalid data in page 3\n{GAVE_UP}"), 20)),
            (&good, &ended(1, "", 20)),
        ] {
            assert_eq!(Parting::of(Side::Rxe, [asked, served]), None, "{asked:?}, {served:?}");
        }
    }

    /// roced's removed queue pairs answer it.
    #[test]
    fn linux_is_not_left_behind() {
        let (good, lost, stopped) = (ended(0, "50 iters", 10), ended(1, GAVE_UP, 20), ended(137, "", 20));
        assert_eq!(Parting::of(Side::Roced, [&good, &lost]), None);
        assert_eq!(Parting::of(Side::Roced, [&good, &stopped]), None);
        assert_eq!(Parting::of(Side::Rxe, [&stopped, &good]), None);
    }
}
