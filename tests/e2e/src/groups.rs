//! Multicast: one speaks, every member of the group hears every word, on whichever host and worker.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use roced_client::{
    Access, Completion, CompletionOp, GRH_BYTES, Gid, MULTICAST_QPN, QueuePair, RecvRequest, SendRequest, ServiceType,
};

use crate::end::{End, hear, say, to};

/// Datagrams that are sent: a receive waits for each.
const WORDS: usize = 48;
/// A word's bytes at most: a frame of such a one lies in two buffers.
const BYTES: usize = 4096;
const TIMEOUT: Duration = Duration::from_secs(20);

fn word(number: usize) -> Vec<u8> {
    let bytes = [1000, BYTES, 0][number % 3];
    (0..bytes).map(|at| (at * 7 + number * 31) as u8).collect()
}

/// Attaches queue pairs to a group, and looks whether each gets every word, in order and whole,
/// while and when the test says so.
pub(crate) fn listen(group: Gid, listeners: usize) -> Result<()> {
    let end = End::toward(group, ServiceType::Ud)?;
    let mut ears = vec![&end.qp];
    let others = (1..listeners).map(|_| end.another_for_datagrams()).collect::<Result<Vec<QueuePair>>>()?;
    ears.extend(&others);
    let room = GRH_BYTES + BYTES;
    let memory = end.pd.allocate(ears.len() * WORDS * room, Access::LOCAL_WRITE)?;
    for (ear, qp) in ears.iter().enumerate() {
        for number in 0..WORDS {
            let place = ear * WORDS + number;
            let sges = [memory.sge(place * room..(place + 1) * room)];
            qp.post_recv(&RecvRequest::new(&sges).id(place as u64))?;
        }
        // A worker that answers has taken all work posted before.
        qp.query()?;
        qp.attach(group, None)?;
    }
    say("attached")?;
    let mut heard = vec![0; ears.len()];
    let deadline = Instant::now() + TIMEOUT;
    while heard.iter().any(|count| *count < WORDS) {
        let mut one = [Completion::EMPTY];
        let count = end.cq.wait(&mut one, deadline.saturating_duration_since(Instant::now()))?;
        ensure!(count == 1, "{heard:?} of {WORDS} words were heard");
        let done = one[0].ok()?;
        let (ear, number) = (done.wr_id as usize / WORDS, done.wr_id as usize % WORDS);
        ensure!(done.op == CompletionOp::Recv && done.has_grh && done.byte_len as usize >= GRH_BYTES, "{done:?}");
        let bytes = memory.to_vec(done.wr_id as usize * room, done.byte_len as usize);
        ensure!(bytes[GRH_BYTES..] == word(number) && heard[ear] == number, "ear {ear}: not word {number}");
        let goes_to = if group.is_ipv4() { &group.0[12..] } else { &group.0[..] };
        ensure!(bytes[..GRH_BYTES].ends_with(goes_to), "it was sent elsewhere: {:02x?}", &bytes[..GRH_BYTES]);
        heard[ear] += 1;
    }
    say("heard")?;
    hear()?;
    ears.iter().try_for_each(|qp| qp.detach(group))?;
    say("detached")?;
    hear()?;
    Ok(())
}

/// Sends every word to a group.
pub(crate) fn speak(group: Gid) -> Result<()> {
    let end = End::toward(group, ServiceType::Ud)?;
    let handle = end.address_handle(group)?;
    let memory = end.pd.allocate(BYTES, Access::LOCAL_WRITE)?;
    for number in 0..WORDS {
        let bytes = word(number);
        memory.write_at(0, &bytes);
        let sges = [memory.sge(..bytes.len())];
        end.qp.post_send(&to(&handle, MULTICAST_QPN, SendRequest::send(&sges)).signaled())?;
        end.completion()?.ok()?;
    }
    say("spoken")
}
