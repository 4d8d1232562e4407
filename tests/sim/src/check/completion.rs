//! Completions: once, in order, and only true ones.

use roced_transport::io::WorkCompletion;
use roced_types::{CompletionOp, Status, completion_flags};

use crate::{
    connection::End,
    message::{Kind, Message, Outcome},
    shared::Shared,
    violation::{Checked, demand},
};

/// A completion in the send queue of `own`, connected to `peer`.
pub(crate) fn check_send(own: &mut End, peer: &mut End, cqe: &WorkCompletion, now: u64) -> Checked {
    let status = cqe.status;
    let first = own.stream.complete;
    demand!(cqe.wr_id >= first, "completion-once", "request {} completes again", cqe.wr_id);
    demand!(cqe.wr_id < own.stream.posted(), "completion-once", "request {} completes and was never posted", cqe.wr_id);
    for id in first..cqe.wr_id {
        let message = own.stream.message(id).expect("incomplete messages are kept");
        demand!(!message.signaled, "completion-order", "request {} completes before {id}", cqe.wr_id);
        check_success(own, peer, id)?;
    }
    own.stream.complete = cqe.wr_id + 1;
    own.stream.alive_at = now;
    let message = own.stream.message(cqe.wr_id).expect("kept");
    match status {
        Status::Success => {
            demand!(message.signaled, "completion-once", "request {} completes and should be silent", cqe.wr_id);
            let (op, bytes) = match message.kind {
                Kind::Send => (CompletionOp::Send, 0),
                Kind::Write => (CompletionOp::Write, 0),
                Kind::Read => (CompletionOp::Read, message.length),
                Kind::CompareSwap => (CompletionOp::CompareSwap, message.length),
                Kind::FetchAdd => (CompletionOp::FetchAdd, message.length),
                Kind::Flush => (CompletionOp::Flush, 0),
                Kind::AtomicWrite => (CompletionOp::AtomicWrite, 0),
                Kind::LocalInvalidate => (CompletionOp::LocalInvalidate, 0),
            };
            demand!(
                (cqe.op, cqe.byte_len) == (op, bytes),
                "completion-status",
                "request {} completes as {:?} with {} bytes: {message:?}",
                cqe.wr_id,
                cqe.op,
                cqe.byte_len
            );
            check_success(own, peer, cqe.wr_id)
        }
        _ => {
            check_failure(own, peer, message, status)?;
            let is_first = own.may_fail && !(own.send_failed || own.ended || own.refuses);
            if status == Status::WorkRequestFlushed && is_first {
                own.stream.check_flushed(cqe.wr_id)?;
            }
            (own.may_fail, own.send_failed, own.failed) = (true, true, true);
            Ok(())
        }
    }
}

/// A request that is done must be: executed, and its ACK here.
fn check_success(own: &mut End, peer: &mut End, id: u64) -> Checked {
    own.stream.skip_executed();
    let stream = &own.stream;
    let message = stream.message(id).expect("kept");
    demand!(!own.send_failed, "completion-order", "request {id} succeeds after one that failed");
    demand!(!stream.must_fail(message), "completion-status", "request {id} succeeds: {message:?}");
    demand!(
        message.end() <= stream.una,
        "completion-ack",
        "request {id} completes; its last PSN is {}, acknowledged up to {}",
        (message.end() - 1) & 0xff_ffff,
        stream.una & 0xff_ffff
    );
    if !stream.settings.service.is_reliable() {
        return Ok(());
    }
    demand!(
        peer.left.as_ref().is_none_or(|left| left.may_have_executed(message)),
        "left-after-all",
        "request {id} succeeds, and its peer left before it was executed: {message:?}"
    );
    demand!(
        stream.executed.id > id && message.end() <= stream.covered,
        "completion-status",
        "request {id} succeeds and was not executed: {message:?}"
    );
    demand!(
        message.kind != Kind::LocalInvalidate || message.invalidated,
        "stale-key",
        "request {id} is done, and its key opens still: {message:?}"
    );
    demand!(
        !message.kind.wants_answer() || stream.is_placed(id),
        "completion-status",
        "READ {id} succeeds and its bytes are not there: {message:?}"
    );
    demand!(
        message.recv.is_none_or(|index| peer.receives.completed > index),
        "completion-status",
        "request {id} succeeds and its receive is not complete: {message:?}"
    );
    let end = message.end();
    own.stream.on_complete(end);
    Ok(())
}

/// A request that failed must have had a reason.
fn check_failure(own: &End, peer: &End, message: &Message, status: Status) -> Checked {
    let (stream, settings) = (&own.stream, &own.stream.settings);
    let plausible = match status {
        Status::WorkRequestFlushed => own.may_fail,
        Status::RemoteAccess => message.outcome == Outcome::RemoteAccess || message.may_fail,
        Status::RemoteInvalidRequest => message.outcome == Outcome::RemoteInvalid,
        Status::LocalLength => message.outcome == Outcome::LocalLength,
        Status::LocalQpOperation => message.outcome == Outcome::LocalOperation,
        Status::LocalProtection => {
            stream.check_taken_away(message)?;
            message.outcome == Outcome::LocalProtection || message.reused == Some(true)
        }
        Status::TransportRetryExceeded => {
            demand!(
                stream.attempts >= settings.retry_cnt,
                "retry",
                "request {} gives up after {} tries, retry_cnt is {}",
                message.wr_id,
                stream.attempts,
                settings.retry_cnt
            );
            let is_executed = peer.left.as_ref().is_some_and(|left| left.has_executed(message));
            demand!(
                !is_executed
                    || stream.awaits_result_before(message)
                    || stream.disturbed.len() >= settings.retry_cnt as usize,
                "left-after-all",
                "request {} gives up, retry_cnt is {}; it was executed before its peer left, and {} frames did not get through as they should",
                message.wr_id,
                settings.retry_cnt,
                stream.disturbed.len()
            );
            let silent = peer.gone || peer.may_fail;
            demand!(
                silent || stream.disturbed.len() >= settings.retry_cnt as usize,
                "retry",
                "request {} gives up, retry_cnt is {}; the peer is there, and {} frames did not get through as they should",
                message.wr_id,
                settings.retry_cnt,
                stream.disturbed.len()
            );
            demand!(
                silent || !stream.is_borne(),
                "reorder",
                "request {} gives up, and frames were only overtaken",
                message.wr_id
            );
            true
        }
        Status::RnrRetryExceeded => {
            demand!(
                settings.rnr_retry < 7 && stream.rnr_naks > settings.rnr_retry,
                "rnr",
                "request {} gives up after {} RNR NAKs, rnr_retry is {}",
                message.wr_id,
                stream.rnr_naks,
                settings.rnr_retry
            );
            true
        }
        _ => false,
    };
    demand!(plausible, "completion-status", "request {} ends with {status:?}: {message:?}", message.wr_id);
    Ok(())
}

/// A completion in the receive queue of `own`, connected to `peer`.
pub(crate) fn check_recv(own: &mut End, peer: &mut End, shared: Option<&mut Shared>, cqe: &WorkCompletion) -> Checked {
    own.finish_receive(shared, cqe.wr_id)?;
    let status = cqe.status;
    let taker = peer.stream.takers.pop_front();
    let message = taker.and_then(|id| peer.stream.message(id));
    if status != Status::Success {
        let short =
            status == Status::LocalLength && message.is_some_and(|message| message.outcome == Outcome::RemoteInvalid);
        let flushed = status == Status::WorkRequestFlushed && own.may_fail;
        let refused = status == Status::RemoteInvalidRequest
            && message.is_some_and(|message| message.invalidates && message.may_fail);
        demand!(short || flushed || refused, "completion-status", "receive {} ends with {status:?}", cqe.wr_id);
        own.failed = true;
        return Ok(());
    }
    peer.stream.skip_executed();
    let (Some(id), Some(message)) = (taker, taker.and_then(|id| peer.stream.message(id))) else {
        demand!(false, "completion-status", "receive {} completes and nothing was sent", cqe.wr_id);
        return Ok(());
    };
    demand!(
        peer.stream.executed.id > id && message.end() <= peer.stream.covered,
        "completion-status",
        "receive {} completes before its message is there: {message:?}",
        cqe.wr_id
    );
    own.told.heard = Some(id);
    own.told.told = own.told.told.max(message.tells);
    own.told.asked |= message.reuses;
    let op = if message.kind == Kind::Send { CompletionOp::Recv } else { CompletionOp::RecvWriteImm };
    let flags = if message.imm.is_some() { completion_flags::IMM } else { 0 }
        | if message.solicited { completion_flags::SOLICITED } else { 0 }
        | if message.invalidates { completion_flags::INVALIDATED } else { 0 };
    let said = if message.invalidates { Some(message.rkey.to_ne_bytes()) } else { message.imm };
    demand!(
        (cqe.op, cqe.byte_len, cqe.flags) == (op, message.length, flags) && said.is_none_or(|said| said == cqe.imm),
        "completion-status",
        "receive completes as {cqe:?}: {message:?}"
    );
    Ok(())
}
