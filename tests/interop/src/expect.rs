//! How the questions of `ends.c` must end, at either end (IBTA v1 9.9.2 and 9.9.3, 10.3.1, 11.6.2
//! and 11.6.3).

use std::fmt;

use anyhow::{Result, bail};

use crate::scenario::{MARKED, Side};

const FLUSHED: &str = "request Work Request Flushed Error";

const ACCESS_EVENT: &str = "event local access violation work queue error";

/// Facts that each end reports.
struct Ending {
    client: Vec<&'static str>,
    server: Vec<&'static str>,
}

/// The facts by the specification, independent of the implementations at the ends.
fn specified(what: &str) -> Option<Ending> {
    Some(match what {
        "operations" | "psn-wrap" => {
            Ending { client: vec!["all operations done"], server: vec!["all operations done"] }
        }
        MARKED => {
            let facts = vec!["all transfers done", "state RTS"];
            Ending { client: facts.clone(), server: facts }
        }
        "reuse" => {
            let mut ending = refused();
            for end in [&mut ending.client, &mut ending.server] {
                end.extend(["all operations done", "state RTS"]);
            }
            ending
        }
        "rnr" => Ending { client: vec!["request success", "state RTS"], server: vec!["receive success", "state RTS"] },
        // The responder has done nothing but to say that it is not ready.
        "rnr-exceeded" => {
            Ending { client: vec!["request RNR retry counter exceeded", "state ERR"], server: vec!["state RTS"] }
        }
        "retry-exceeded" => {
            Ending { client: vec!["request transport retry counter exceeded", "state ERR"], server: vec!["state RTS"] }
        }
        // 9.7.4.1.6: longer than the receive is an invalid request.
        "send-too-long" => Ending {
            client: vec!["request remote invalid request error", "state ERR"],
            server: vec!["receive local length error", "state ERR"],
        },
        _ if ["wrong-key-", "no-right-", "out-of-bounds-"].iter().any(|start| what.starts_with(start)) => refused(),
        _ => return None,
    })
}

/// NAK "remote access error": the requester's queue pair ends, requests behind the refused
/// one are flushed; the responder's ends, its receive is flushed, and it has an event of the access
/// error.
fn refused() -> Ending {
    Ending {
        client: vec!["request remote access error", FLUSHED, "state ERR"],
        server: vec!["receive Work Request Flushed Error", ACCESS_EVENT, "state ERR"],
    }
}

/// A known deviation of an end from the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quirk {
    /// The side that departs from the specification; the other end may be the one that reports it.
    pub(crate) of: Side,
    pub(crate) told: &'static str,
}

impl fmt::Display for Quirk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.of, self.told)
    }
}

/// Where it shows.
struct Known {
    /// Questions with a name that begins so.
    what: &'static str,
    /// The side that asks when it does.
    client: Side,
    /// The side that reports the fact.
    whose: Side,
    /// The expected fact; empty for an additional one.
    expected: &'static str,
    /// The fact in its place, if any.
    instead: Option<&'static str>,
    quirk: Quirk,
}

const NO_EVENT: Quirk = Quirk { of: Side::Rxe, told: "a refused request raises no asynchronous event" };

const fn no_event(what: &'static str) -> Known {
    let expected = ACCESS_EVENT;
    Known { what, client: Side::Roced, whose: Side::Rxe, expected, instead: None, quirk: NO_EVENT }
}

const fn too_long(client: Side, whose: Side, expected: &'static str, instead: &'static str, quirk: Quirk) -> Known {
    Known { what: "send-too-long", client, whose, expected, instead: Some(instead), quirk }
}

const TOO_LONG: Quirk =
    Quirk { of: Side::Rxe, told: "a SEND longer than its receive is a remote operation error (NAK 0x63)" };
const TOLD_TWICE: Quirk = Quirk {
    of: Side::Roced,
    told: "the receive that is too short completes with an error, and there is an event as well",
};

const KNOWN: [Known; 7] = [
    no_event("wrong-key-"),
    no_event("no-right-"),
    no_event("out-of-bounds-"),
    no_event("reuse"),
    too_long(
        Side::Roced,
        Side::Roced,
        "request remote invalid request error",
        "request remote operation error",
        TOO_LONG,
    ),
    too_long(Side::Roced, Side::Rxe, "receive local length error", "receive local QP operation error", TOO_LONG),
    // A fact that is reported once too often takes nothing's place.
    too_long(Side::Rxe, Side::Roced, "", "event invalid request local work queue error", TOLD_TWICE),
];

/// Compares the facts of the ends with the required ones. Returns the known deviations.
///
/// # Errors
/// When something else is otherwise.
pub(crate) fn check(what: &str, client: Side, asked: &str, served: &str) -> Result<Vec<Quirk>> {
    let Some(wanted) = specified(what) else { bail!("it is not known how '{what}' must end") };
    let mut quirks = Vec::new();
    let mut wrong = Vec::new();
    for (side, told, wanted) in [(client, asked, wanted.client), (client.other(), served, wanted.server)] {
        let mut told: Vec<&str> = told.lines().collect();
        let mut wanted = wanted;
        for known in KNOWN.iter().filter(|it| what.starts_with(it.what) && it.client == client && it.whose == side) {
            let at = wanted.iter().position(|fact| *fact == known.expected);
            if !told.contains(&known.expected) && (at.is_some() || known.expected.is_empty()) {
                at.map(|at| wanted.remove(at));
                wanted.extend(known.instead);
                quirks.push(known.quirk);
            }
        }
        // Completions and events have no order between them.
        told.sort_unstable();
        wanted.sort_unstable();
        if told != wanted {
            wrong.push(format!("{side} says {told:?}, not {wanted:?}"));
        }
    }
    if wrong.is_empty() { Ok(quirks) } else { bail!("{}", wrong.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_specified_behavior_passes() {
        let client = "request remote access error\nrequest Work Request Flushed Error\nstate ERR\n";
        let server = format!("receive Work Request Flushed Error\n{ACCESS_EVENT}\nstate ERR\n");
        assert!(check("wrong-key-write", Side::Rxe, client, &server).is_ok_and(|quirks| quirks.is_empty()));
        assert!(check("wrong-key-write", Side::Rxe, client, "state ERR\n").is_err());
        assert!(check("wrong-key-write", Side::Rxe, "request success\n", &server).is_err());
        assert!(check("something-else", Side::Rxe, client, &server).is_err());
    }

    #[test]
    fn rxe_may_be_silent_about_an_access_error_and_roced_may_not() {
        let client = "request remote access error\nrequest Work Request Flushed Error\nstate ERR\n";
        let silent = "receive Work Request Flushed Error\nstate ERR\n";
        assert_eq!(check("no-right-read", Side::Roced, client, silent).ok(), Some(vec![NO_EVENT]));
        assert!(check("no-right-read", Side::Rxe, client, silent).is_err());
    }

    #[test]
    fn every_question_has_an_ending() {
        for what in crate::scenario::QUESTIONS.into_iter().chain([MARKED]) {
            assert!(specified(what).is_some(), "{what}");
        }
    }
}
