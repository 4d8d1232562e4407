//! Memory that is lent by a window: bound, told to the peer, written by the peer, taken back.

use anyhow::{Context as _, Result, bail, ensure};
use roced_client::{
    Access, CompletionOp, ConnectOptions, MemoryRegion, RecvRequest, RemoteMemory, SendRequest, ServiceType, Status,
    WindowKind,
};

use crate::end::{End, hear, say};

/// Bytes of a loan.
const BYTES: usize = 5000;

/// Byte that the borrower writes in a round.
fn byte(round: usize, at: usize) -> u8 {
    (round * 29 + at * 3) as u8
}

/// The borrower leaves it to the lender to take the loan back. Where neither did, the window could
/// not be bound anew.
const fn is_left(round: usize) -> bool {
    round % 3 == 2
}

/// Two connections in one protection domain, and a buffer for notes.
struct Party {
    ends: [End; 2],
    note: MemoryRegion,
}

impl Party {
    fn open() -> Result<Self> {
        let first = End::open()?;
        let second = first.another()?;
        let note = first.pd.allocate(64, Access::LOCAL_WRITE)?;
        let party = Self { ends: [first, second], note };
        for end in &party.ends {
            end.meet(None, &ConnectOptions::default())?;
        }
        Ok(party)
    }

    /// A note that the peer will write; to be asked for before the peer may write it.
    fn expect_note(&self) -> Result<()> {
        Ok(self.ends[0].qp.post_recv(&RecvRequest::new(&[self.note.sge(..)]))?)
    }

    fn write_note(&self, loan: RemoteMemory) -> Result<()> {
        let numbers = [loan.va, loan.length, loan.rkey.into()];
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
        Ok(self.ends[0].qp.post_send(&SendRequest::send_inline(&bytes))?)
    }

    fn read_note(&self) -> Result<RemoteMemory> {
        let received = self.ends[0].completion()?.ok()?;
        ensure!((received.op, received.byte_len) == (CompletionOp::Recv, 24), "no note: {received:?}");
        let number = |at: usize| u64::from_be_bytes(self.note.to_vec(at * 8, 8).try_into().expect("eight bytes"));
        Ok(RemoteMemory { va: number(0), length: number(1), rkey: u32::try_from(number(2))? })
    }
}

/// Lends memory `rounds` times by a window of type 2, which the borrower's SEND takes back or a
/// LOCAL_INV; then once by a window of type 1, which is bound by one queue pair, used by another,
/// and bound to nothing.
pub(crate) fn lend(rounds: usize) -> Result<()> {
    let party = Party::open()?;
    let end = &party.ends[0];
    let region = end.pd.allocate(2 * BYTES, Access::WINDOW_BIND | Access::LOCAL_WRITE)?;
    let window = end.pd.memory_window(WindowKind::Two)?;
    for round in 0..rounds {
        party.expect_note()?;
        let binding = window.bind(&region, 100..100 + BYTES, Access::REMOTE_WRITE);
        end.qp.post_send(&SendRequest::bind(&binding))?;
        // Behind the bind in the queue: the window is open when the peer reads this.
        party.write_note(binding.remote())?;
        let received = end.completion()?.ok()?;
        let key = binding.remote().rkey;
        let taken_back = (!is_left(round)).then_some(key);
        ensure!(received.invalidated == taken_back, "round {round}: {received:?}, key 0x{key:08x}");
        if is_left(round) {
            end.qp.post_send(&SendRequest::local_invalidate(key).signaled())?;
            ensure!(end.completion()?.ok()?.op == CompletionOp::LocalInvalidate);
        }
        let bytes = region.to_vec(100, BYTES);
        let wrong = (0..BYTES).find(|&at| bytes[at] != byte(round, at));
        ensure!(wrong.is_none(), "round {round}: byte {wrong:?} is wrong");
    }
    drop(window);
    let window = end.pd.memory_window(WindowKind::One)?;
    party.expect_note()?;
    let binding = window.bind(&region, .., Access::REMOTE_WRITE);
    end.qp.post_send(&SendRequest::bind(&binding))?;
    party.write_note(binding.remote())?;
    party.read_note().context("the borrower has written")?;
    let nothing = window.bind(&region, 0..0, Access::NONE);
    end.qp.post_send(&SendRequest::bind(&nothing).signaled())?;
    ensure!(end.completion()?.ok()?.op == CompletionOp::BindWindow);
    region.fill(0, region.len(), 0);
    // A refusal that gets lost is not said twice: from here on the network is to be good.
    say("taken back")?;
    hear()?;
    party.expect_note()?;
    party.write_note(binding.remote())?;
    party.read_note().context("the borrower has tried again")?;
    ensure!(region.to_vec(0, region.len()).iter().all(|byte| *byte == 0), "a peer wrote behind the taking back");
    say("lent")
}

/// Writes to the lent memory.
pub(crate) fn borrow(rounds: usize) -> Result<()> {
    let party = Party::open()?;
    let [first, second] = &party.ends;
    let data = first.pd.allocate(BYTES, Access::NONE)?;
    let write = |end: &End, loan| -> Result<Status> {
        end.qp.post_send(&SendRequest::write(&[data.sge(..)], loan).signaled())?;
        Ok(end.completion()?.status)
    };
    for round in 0..rounds {
        party.expect_note()?;
        let loan = party.read_note()?;
        let bytes: Vec<u8> = (0..BYTES).map(|at| byte(round, at)).collect();
        data.write_at(0, &bytes);
        let sges = [data.sge(..)];
        first.qp.post_send(&SendRequest::write(&sges, loan))?;
        let word = SendRequest::send(&[]);
        first.qp.post_send(&if is_left(round) { word } else { word.invalidate(loan.rkey) }.signaled())?;
        first.completion()?.ok()?;
    }
    party.expect_note()?;
    let loan = party.read_note()?;
    ensure!(write(second, loan)? == Status::Success, "bound by the one, used by the other");
    party.expect_note()?;
    party.write_note(loan)?;
    let loan = party.read_note()?;
    ensure!(write(second, loan)? == Status::RemoteAccess, "bound to nothing, and still open");
    party.write_note(loan)?;
    say("borrowed")
}

/// Lends memory over an unreliable connection, takes it back by LOCAL_INV, and sees that no peer
/// writes to it any more.
pub(crate) fn lend_unreliably() -> Result<()> {
    let end = End::of(ServiceType::Uc)?;
    let region = end.pd.allocate(BYTES, Access::WINDOW_BIND | Access::LOCAL_WRITE)?;
    let window = end.pd.memory_window(WindowKind::Two)?;
    // For the immediate of the WRITE, and for the word behind the one that is too late.
    for _ in 0..2 {
        end.qp.post_recv(&RecvRequest::new(&[]))?;
    }
    end.meet(None, &ConnectOptions::default())?;
    let binding = window.bind(&region, .., Access::REMOTE_WRITE);
    end.qp.post_send(&SendRequest::bind(&binding).signaled())?;
    ensure!(end.completion()?.ok()?.op == CompletionOp::BindWindow);
    let loan = binding.remote();
    say(&format!("lent {} {} {}", loan.va, loan.length, loan.rkey))?;
    ensure!(end.completion()?.ok()?.op == CompletionOp::RecvWriteImm);
    let wrong = (0..BYTES).find(|&at| region.to_vec(at, 1)[0] != byte(1, at));
    ensure!(wrong.is_none(), "byte {wrong:?} is wrong");
    end.qp.post_send(&SendRequest::local_invalidate(loan.rkey).signaled())?;
    ensure!(end.completion()?.ok()?.op == CompletionOp::LocalInvalidate);
    region.fill(0, region.len(), 0);
    say("taken back")?;
    let word = end.completion()?.ok()?;
    ensure!(word.op == CompletionOp::Recv, "{word:?} came through a window that is closed");
    ensure!(region.to_vec(0, BYTES).iter().all(|byte| *byte == 0), "a peer wrote behind the taking back");
    say("nothing came")
}

/// Writes to the lent memory, and once more when it was taken back.
pub(crate) fn borrow_unreliably() -> Result<()> {
    let end = End::of(ServiceType::Uc)?;
    let data = end.pd.allocate(BYTES, Access::NONE)?;
    data.write_at(0, &(0..BYTES).map(|at| byte(1, at)).collect::<Vec<_>>());
    end.meet(None, &ConnectOptions::default())?;
    let line = hear()?;
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [va, length, rkey] = numbers[..] else { bail!("'{line}' is no loan") };
    let sges = [data.sge(..)];
    let loan = RemoteMemory { va, length, rkey: u32::try_from(rkey)? };
    let write = SendRequest::write(&sges, loan).imm([1; 4]).signaled();
    end.qp.post_send(&write)?;
    end.completion()?.ok()?;
    hear()?;
    end.qp.post_send(&write)?;
    end.qp.post_send(&SendRequest::send(&[]).signaled())?;
    end.completion()?.ok()?;
    end.completion()?.ok()?;
    say("borrowed")
}
