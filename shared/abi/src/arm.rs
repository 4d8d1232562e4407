//! The arm word of a completion queue: how a client asks for one event, and how the worker that
//! completes takes the request.
//!
//! ```text
//!   client   arm  ->  look at every CQ ring once more  ->  wait for the channel
//!   worker   publish the index of the CQ ring  ->  fire  ->  send the event when that said so
//! ```
//!
//! Both sides have a sequentially consistent fence between their two steps, so that either the
//! client sees the completion or the worker sees the request. Several workers may complete into one
//! queue: the compare-exchange gives the request to one of them, so one request makes one event.

use super::layout::armed;
use crate::sync::{AtomicU32, Ordering, fence};

/// Kind of completions for which a client requests an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionRequest {
    /// Solicited ones, and those with an error.
    Solicited,
    /// All.
    Any,
}

/// The client: "tell me of the next completion". Look at every CQ ring once more after this, and
/// only then wait. A request for all completions is not weakened by a later one for solicited ones.
pub fn arm(word: &AtomicU32, wanted: CompletionRequest) {
    match wanted {
        CompletionRequest::Any => word.store(armed::ANY, Ordering::Relaxed),
        CompletionRequest::Solicited => {
            // Fails when a request is there already: it asks for at least as much.
            let _already_armed =
                word.compare_exchange(armed::NO, armed::SOLICITED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
    fence(Ordering::SeqCst);
}

/// The worker, after it published completions: the request that it took and now owes an event for.
/// `solicited`: one of them was solicited or an error. Any number that a hostile client writes here
/// is a request or none.
pub fn fire(word: &AtomicU32, solicited: bool) -> Option<CompletionRequest> {
    fence(Ordering::SeqCst);
    let seen = word.load(Ordering::Relaxed);
    let wanted = match seen {
        armed::ANY => CompletionRequest::Any,
        armed::SOLICITED if solicited => CompletionRequest::Solicited,
        _ => return None,
    };
    // Another worker may have taken it meanwhile.
    word.compare_exchange(seen, armed::NO, Ordering::AcqRel, Ordering::Relaxed).ok().map(|_| wanted)
}
