//! Doorbells that clients ring without end: bounded work in a poll iteration, and no account waits
//! for another.
#![expect(unsafe_code, reason = "maps as a client does")]

use std::{num::NonZeroUsize, os::fd::OwnedFd};

use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use roced::worker::{client_fault::ClientFault, qp_table::QpTable};
use roced_abi::{
    doorbell::{DOORBELLS, DoorbellBlock, MappedDoorbells, ring_doorbell},
    layout::{doorbell_block_offset, session_bytes},
};
use roced_memory::{
    queues::{new_qp, new_session},
    quota::Room,
};
use roced_types::{AccountId, EndpointId, QpSizes, Qpn, SessionId};

const SIZES: QpSizes = QpSizes { send_wrs: 16, recv_wrs: 16, send_sges: 1, recv_sges: 1, inline_bytes: 0 };

/// The client's side of a session.
struct SessionBlock(MappedDoorbells<OwnedFd>);

impl SessionBlock {
    /// Adds a session of an account to the worker's table.
    fn open(table: &mut QpTable, session: u32, account: u32) -> Self {
        let (halves, fd, _) = new_session(SessionId(session), 1, Room::default()).expect("a small session");
        for mut half in halves {
            half.account = AccountId(account);
            table.add_session(half).expect("a free place");
        }
        let length = NonZeroUsize::new(session_bytes(1)).expect("a page");
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base =
            unsafe { mmap(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, &fd, 0) };
        let base = base.expect("a mapping").cast();
        // SAFETY: the layout places the block inside the mapping, which is never unmapped.
        Self(unsafe { MappedDoorbells::new(base.add(doorbell_block_offset(0)), fd) })
    }

    /// Rings for all queue pairs that there can be.
    fn ring_all(&self) {
        (0..DOORBELLS).for_each(|doorbell| ring_doorbell(&self.0, doorbell));
    }

    /// Words with doorbells that were not taken.
    fn words_left(&self) -> usize {
        (0..64).filter(|word| self.0.word(*word).load(std::sync::atomic::Ordering::Relaxed) != 0).count()
    }
}

/// Adds a queue pair in `entry` with this doorbell.
fn add_qp(table: &mut QpTable, entry: u32, session: u32, doorbell: u32) {
    let qpn = Qpn::new(EndpointId::new(0).expect("the first"), 2 + entry);
    let (rings, _) = new_qp(qpn, SessionId(session), doorbell, SIZES, Room::default()).expect("small rings");
    table.add_qp(entry, rings);
}

#[test]
fn a_poll_iteration_takes_few_words_of_an_account_and_others_do_not_wait() {
    const SESSIONS: u32 = 20;
    let mut table = QpTable::new(SESSIONS + 1, 4096, 4);
    let blocks: Vec<SessionBlock> = (0..SESSIONS).map(|session| SessionBlock::open(&mut table, session, 1)).collect();
    // Their doorbells have queue pairs.
    (0..64).for_each(|word| add_qp(&mut table, word, word % SESSIONS, word * 64));
    let ours = SessionBlock::open(&mut table, 100, 2);
    add_qp(&mut table, 4000, 100, 7);
    blocks.iter().for_each(SessionBlock::ring_all);
    ring_doorbell(&ours.0, 7);
    let rung = table.drain_doorbells(false);
    assert_eq!(rung.fault, None);
    let taken = blocks.iter().map(|block| 64 - block.words_left()).sum::<usize>();
    assert!(taken <= 128, "{taken} words in one poll iteration");
    assert_eq!(ours.words_left(), 0);
    let visits: Vec<_> = std::iter::from_fn(|| table.next_visit()).collect();
    assert!(visits.contains(&4000), "{visits:?}");
    // Nothing is lost: all are taken in the end, and each session has its part.
    let mut iterations = 1;
    while table.any_doorbell() {
        let before: Vec<_> = blocks.iter().map(SessionBlock::words_left).collect();
        table.drain_doorbells(false);
        let taken = blocks.iter().zip(before).map(|(block, before)| before - block.words_left()).sum::<usize>();
        assert!(taken <= 128, "{taken} words in one poll iteration");
        iterations += 1;
        assert!(iterations < 1000, "doorbells that are never taken");
    }
    assert!(iterations >= SESSIONS as usize * 64 / 128, "{iterations} iterations");
    assert!(blocks.iter().all(|block| block.words_left() == 0));
    let visits = visits.len() + std::iter::from_fn(|| table.next_visit()).count();
    assert_eq!(visits, 64 + 1, "each queue pair has its visit");
}

#[test]
fn a_client_that_rings_doorbells_without_a_queue_is_at_fault_one_that_destroys_queues_is_not() {
    let mut table = QpTable::new(2, 64, 4);
    let (stray, honest) = (SessionBlock::open(&mut table, 1, 1), SessionBlock::open(&mut table, 2, 2));
    // A program posts while another of its threads destroys the queue pair.
    for _ in 0..5000 {
        add_qp(&mut table, 0, 2, 9);
        assert!(table.remove_qp(0).is_some());
        ring_doorbell(&honest.0, 9);
        assert_eq!(table.drain_doorbells(true).fault, None);
    }
    let fault = (0..1000).find_map(|_| {
        stray.ring_all();
        // It waits until the fault can be told.
        assert_eq!(table.drain_doorbells(false).fault, None);
        table.drain_doorbells(true).fault
    });
    assert_eq!(fault, Some((SessionId(1), ClientFault::StrayDoorbells)));
    stray.ring_all();
    assert!(!table.any_doorbell(), "it is muted");
}
