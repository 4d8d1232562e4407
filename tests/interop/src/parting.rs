//! A program that ends well has its last message; that the ACK of it arrives is no longer its
//! business. Where the network loses that ACK, its queue pair is gone when the message comes again,
//! no answer comes, and its sender is told "transport retry exceeded": both ends and the network
//! did only permitted things. The output of both does not tell that from a peer that never
//! answered; the captures do (`check/last_ack.rs`).

use crate::{process::Ended, scenario::Side};

/// Exit code of `timeout -s KILL` for a command that it ended.
const KILLED: i32 = 137;

/// One side has ended well, and the other, left behind, with a request without an answer.
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
        let parted = |left_behind: Side, ended: &Ended, other: &Ended| {
            let waits_in_vain = has_given_up(left_behind, ended) && is_good(other);
            waits_in_vain.then_some(Self { left_behind, other_ended_ns: other.at_ns })
        };
        parted(client, asked, served).or_else(|| parted(client.other(), served, asked))
    }
}

/// Whether a stock program did its task.
pub(crate) fn is_good(ended: &Ended) -> bool {
    ended.code == 0 && !has_wrong_data(ended)
}

fn has_wrong_data(ended: &Ended) -> bool {
    ended.output.contains("invalid data")
}

/// It had no answer for as often as it asked. Of rxe a retry count of 7, which all these programs
/// ask for, never runs out, so that they are stopped while they wait.
fn has_given_up(side: Side, ended: &Ended) -> bool {
    let is_told = ["transport retry counter exceeded", "Failed status 12"].iter().any(|it| ended.output.contains(it));
    !has_wrong_data(ended) && ((ended.code != 0 && is_told) || (side == Side::Rxe && ended.code == KILLED))
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
            // The other side failed too.
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

    #[test]
    fn rxe_may_wait_until_it_is_stopped_and_roced_may_not() {
        let (good, stopped) = (ended(0, "50 iters", 10), ended(KILLED, "", 20));
        let parting = Parting { left_behind: Side::Rxe, other_ended_ns: 10 };
        assert_eq!(Parting::of(Side::Roced, [&good, &stopped]), Some(parting));
        assert_eq!(Parting::of(Side::Rxe, [&good, &stopped]), None);
    }
}
