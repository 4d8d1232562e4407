//! Memory that clients bring: descriptors of files that they seal, cut short, grow and write to
//! while the daemon maps parts of them, copies and executes atomic operations there.
//!
//! A file is a plain vector beside it. Bytes of pages that are there are those of the vector; an
//! access to pages that were cut off loses that one mapping and harms nothing else. In the end the
//! quota of each user is free again.

use std::{
    io::IoSlice,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair},
    },
    unistd::ftruncate,
};
use roced_memory::{
    accounts::ClientAccounts,
    backing::Backing,
    client_memory::{ClientMemory, MemoryKind},
    descriptor::{self, Descriptor},
    first_touch,
    quota::Quota,
};
use roced_transport::io::AtomicOperation;
use roced_types::AccountId;

use crate::{input::Input, seeds::Seed};

const PAGE: usize = 4096;
/// Of each file at first.
const PAGES: usize = 3;
/// Longest access: more than a page, so that one can begin on a page that is there and end on one
/// that is not.
const ACCESS_MAX: usize = PAGE + 100;
const ACCOUNTS: [AccountId; 2] = [AccountId(4_000_000_101), AccountId(4_000_000_102)];
const MAPPINGS: u32 = 6;
const MAPPINGS_OF_AN_ACCOUNT: u32 = 4;

/// A file of a client.
struct Shared {
    file: std::fs::File,
    seals: SealFlag,
    model: Vec<u8>,
    /// Bytes of the pages from the first on that the client has touched: no others are made for an
    /// access.
    touched: usize,
}

/// A part of a file that the daemon maps.
struct Mapped {
    memory: std::sync::Arc<ClientMemory>,
    file: usize,
    begin: usize,
    bytes: usize,
    writable: bool,
    account: AccountId,
}

struct World {
    files: Vec<Shared>,
    mapped: Vec<Mapped>,
    quota: Quota,
    accounts: ClientAccounts,
    theirs: OwnedFd,
    ours: OwnedFd,
}

/// One run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut world = World::new(&mut input);
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.end();
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (theirs, ours) = pair.expect("a socket pair");
        let files = (0..2).map(|_| Shared::new(input.byte())).collect();
        let quota = Quota::new(MAPPINGS, MAPPINGS_OF_AN_ACCOUNT);
        Self { files, mapped: Vec::new(), quota, accounts: ClientAccounts::default(), theirs, ours }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0 | 1 => self.map(input),
            2 => self.write(input),
            3 => self.read(input),
            4 => self.copy(input),
            5 => self.atomic(input),
            6 => self.change_file(input),
            _ => {
                if !self.mapped.is_empty() {
                    let place = usize::from(input.byte()) % self.mapped.len();
                    self.mapped.swap_remove(place);
                }
            }
        }
    }

    /// A descriptor comes by the socket, and a part of its file is mapped, if that may be.
    fn map(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.byte()) % self.files.len();
        let (account, flags) = (input.of(&ACCOUNTS), input.byte());
        let (begin, pages) = (usize::from(flags & 3), usize::from(flags >> 2 & 3));
        let writable = flags & 0x10 != 0;
        let descriptor = self.pass(at, account);
        let shared = descriptor.into_shared_file().expect("a memfd");
        let taken = self.mapped.iter().filter(|mapped| mapped.account == account).count() as u32;
        let has_room = taken < MAPPINGS_OF_AN_ACCOUNT && (self.mapped.len() as u32) < MAPPINGS;
        let room = self.quota.take(account, 1);
        assert_eq!(room.is_ok(), has_room, "the quota counts");
        let Ok(room) = room else { return };
        let (begin, bytes) = (begin * PAGE, pages * PAGE);
        let part = begin as u64..(begin + bytes) as u64;
        let file = &self.files[at];
        let made = ClientMemory::map(&shared, part, writable, MemoryKind::FileBacked, room);
        let expected = if begin + bytes > file.model.len() {
            Err(Errno::EOVERFLOW)
        } else if bytes == 0 {
            Err(Errno::EINVAL)
        } else if writable && file.seals.contains(SealFlag::F_SEAL_FUTURE_WRITE) {
            Err(Errno::EPERM)
        } else {
            Ok(())
        };
        assert_eq!(made.as_ref().map(drop).map_err(|errno| *errno), expected);
        if let Ok(memory) = made {
            assert_eq!(memory.len(), bytes as u64);
            self.mapped.push(Mapped { memory: memory.into(), file: at, begin, bytes, writable, account });
        }
    }

    fn pass(&self, at: usize, account: AccountId) -> Descriptor {
        let raw = [self.files[at].file.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&raw)];
        sendmsg::<()>(self.theirs.as_raw_fd(), &[IoSlice::new(b"x")], &rights, MsgFlags::empty(), None)
            .expect("room in the socket");
        let incoming =
            descriptor::receive(&self.ours, &mut [0; 2], &self.accounts.account(account)).expect("a message");
        let mut incoming = incoming.expect("few are in closing");
        assert!(incoming.length == 1 && !incoming.exhausted);
        incoming.descriptors.pop().expect("the descriptor")
    }

    /// A mapping, and a range inside.
    fn choose(&self, input: &mut Input<'_>) -> Option<(usize, usize, usize)> {
        let number = usize::from(input.byte()).checked_rem(self.mapped.len())?;
        let (offset, length) = (usize::from(input.u16()), usize::from(input.u16()));
        let bytes = self.mapped[number].bytes;
        let offset = offset % (bytes + 1);
        Some((number, offset, (length % ACCESS_MAX).min(bytes - offset)))
    }

    /// The range of the model that an access has, if the mapping is intact and all its pages are
    /// there. Otherwise the access must lose the mapping, and no other.
    fn intact(&self, (number, offset, length): (usize, usize, usize)) -> Option<std::ops::Range<usize>> {
        let mapped = &self.mapped[number];
        let begin = mapped.begin + offset;
        let is_there = begin + length <= self.files[mapped.file].touched;
        (is_there && !mapped.is_lost()).then_some(begin..begin + length)
    }

    fn write(&mut self, input: &mut Input<'_>) {
        let Some(access @ (number, offset, length)) = self.choose(input) else { return };
        if !self.mapped[number].writable {
            return;
        }
        let first = input.byte();
        let bytes: Vec<u8> = (0..length).map(|place| first.wrapping_add(place as u8)).collect();
        let intact = self.intact(access);
        self.mapped[number].memory.write(offset as u64, &bytes);
        match intact {
            Some(range) => self.files[self.mapped[number].file].model[range].copy_from_slice(&bytes),
            None => self.after_loss(number, length),
        }
    }

    fn read(&mut self, input: &mut Input<'_>) {
        let Some(access @ (number, offset, length)) = self.choose(input) else { return };
        let intact = self.intact(access);
        let mut into = vec![0xee; length];
        self.mapped[number].memory.read(offset as u64, &mut into);
        match intact {
            Some(range) => assert!(into == self.files[self.mapped[number].file].model[range], "other bytes"),
            None => self.after_loss(number, length),
        }
    }

    fn copy(&mut self, input: &mut Input<'_>) {
        let (Some(to), Some(from)) = (self.choose(input), self.choose(input)) else { return };
        let length = to.2.min(from.2);
        let (to, from) = ((to.0, to.1, length), (from.0, from.1, length));
        if !self.mapped[to.0].writable {
            return;
        }
        let ranges = self.intact(to).zip(self.intact(from));
        self.mapped[to.0].memory.copy(to.1 as u64, &self.mapped[from.0].memory, from.1 as u64, length);
        match ranges {
            Some((target, source)) => {
                let bytes = self.files[self.mapped[from.0].file].model[source].to_vec();
                self.files[self.mapped[to.0].file].model[target].copy_from_slice(&bytes);
                // Two mappings of one file may overlap, which the copy does not know.
                self.read_again(self.mapped[to.0].file);
            }
            None => {
                let lost = |number: usize| self.mapped[number].is_lost();
                assert!(length == 0 || lost(to.0) || lost(from.0), "pages that are not there were accessed");
                self.read_again(self.mapped[to.0].file);
            }
        }
    }

    fn atomic(&mut self, input: &mut Input<'_>) {
        let Some((number, offset, _)) = self.choose(input) else { return };
        let offset = (offset & !7).min(self.mapped[number].bytes - 8);
        if !self.mapped[number].writable {
            return;
        }
        let add = u64::from(input.u32());
        let intact = self.intact((number, offset, 8));
        let before = self.mapped[number].memory.atomic(offset as u64, AtomicOperation::FetchAdd { add });
        match intact {
            Some(range) => {
                let word = &mut self.files[self.mapped[number].file].model[range];
                assert_eq!(word, before.to_ne_bytes(), "the value before");
                word.copy_from_slice(&before.wrapping_add(add).to_ne_bytes());
            }
            None => self.after_loss(number, 8),
        }
    }

    /// The client changes its file: length or bytes.
    fn change_file(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.byte()) % self.files.len();
        let file = &mut self.files[at];
        if input.byte() & 1 == 0 {
            let length = usize::from(input.byte() % 5) * PAGE;
            let sealed = if length < file.model.len() { SealFlag::F_SEAL_SHRINK } else { SealFlag::F_SEAL_GROW };
            let may = length == file.model.len() || !file.seals.contains(sealed);
            assert_eq!(ftruncate(&file.file, length as i64).is_ok(), may, "seals");
            if may {
                file.model.resize(length, 0);
                file.touch();
            }
        } else if !file.model.is_empty() && !file.seals.contains(SealFlag::F_SEAL_FUTURE_WRITE) {
            let place = usize::from(input.u16()) % file.model.len();
            file.model[place] = input.byte();
            file.file.write_all_at(&file.model[place..=place], place as u64).expect("the file can be written");
        }
    }

    /// After an access to pages that may not be there.
    fn after_loss(&mut self, number: usize, length: usize) {
        assert!(length == 0 || self.mapped[number].is_lost(), "pages that are not there were accessed");
        // How much of a write arrived before is not said.
        self.read_again(self.mapped[number].file);
    }

    fn read_again(&mut self, at: usize) {
        let file = &mut self.files[at];
        file.file.read_exact_at(&mut file.model, 0).expect("the file can be read");
    }

    /// Everything is given back.
    fn end(self) {
        let Self { mapped, quota, .. } = self;
        drop(mapped);
        let all = [
            quota.take(ACCOUNTS[0], MAPPINGS_OF_AN_ACCOUNT),
            quota.take(ACCOUNTS[1], MAPPINGS - MAPPINGS_OF_AN_ACCOUNT),
        ];
        assert!(all.iter().all(Result::is_ok), "the quota is free again: {all:?}");
    }
}

impl Shared {
    fn new(kind: u8) -> Self {
        let choices = [
            SealFlag::empty(),
            SealFlag::F_SEAL_SHRINK,
            SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW,
            SealFlag::F_SEAL_FUTURE_WRITE,
        ];
        let seals = choices[usize::from(kind) % choices.len()];
        let fd = memfd_create(c"fuzz", MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC).expect("a memfd");
        let file = std::fs::File::from(fd);
        let model: Vec<u8> = (0..PAGES * PAGE).map(|place| ((place * 31) >> 3) as u8).collect();
        file.write_all_at(&model, 0).expect("the file can be written");
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).expect("it can be sealed");
        let touched = model.len();
        Self { file, seals, model, touched }
    }

    /// Touches pages that have come, if the seals allow it.
    fn touch(&mut self) {
        self.touched = self.touched.min(self.model.len());
        if !self.seals.contains(SealFlag::F_SEAL_FUTURE_WRITE) {
            let more = &self.model[self.touched..];
            self.file.write_all_at(more, self.touched as u64).expect("the file can be written");
            self.touched = self.model.len();
        } else if first_touch::clients_pay().is_err() {
            self.touched = self.model.len();
        }
    }
}

impl Mapped {
    fn is_lost(&self) -> bool {
        Backing::from(std::sync::Arc::clone(&self.memory)).is_lost()
    }
}

/// An orderly client, and each way to lose memory.
pub(crate) fn seeds() -> Vec<Seed> {
    // Two pages of the first file from its first page on, to write.
    let map = |flags: u8| vec![0, 0, 0, flags];
    let (two, three, read_only) = (map(0x18), map(0x1c), map(0x0c));
    let write = [2, 0, 0xf0, 0x0f, 0x20, 0, 7];
    let read = [3, 0, 0xf0, 0x0f, 0x20, 0];
    let copy = [4, 0, 0x10, 0, 0x40, 0, 0, 0x20, 0, 0x40, 0];
    let atomic = [5, 0, 8, 0, 0, 0, 1, 0, 0, 0];
    let cut = [6, 0, 0, 1];
    let grow = [6, 0, 0, 3];
    let poke = [6, 0, 1, 5, 0, 9];
    let end = [7, 0];
    let seed = |name: &str, kind: u8, steps: &[&[u8]]| Seed {
        name: name.into(),
        bytes: [&[kind, kind][..], &steps.concat()].concat(),
    };
    vec![
        seed("orderly", 1, &[&two, &write, &read, &copy, &read, &atomic, &read, &poke, &read, &end]),
        seed("cut-and-read", 0, &[&three, &write, &cut, &read, &read, &end]),
        seed("cut-and-write", 0, &[&three, &cut, &write, &read, &atomic]),
        seed("cut-and-copied", 0, &[&three, &two, &cut, &copy, &read]),
        seed("cut-and-grown", 0, &[&three, &cut, &grow, &read, &write, &read]),
        seed("sealed", 2, &[&three, &cut, &grow, &write, &read]),
        seed("read-only", 3, &[&two, &read_only, &read, &atomic, &copy]),
        seed("too-many", 1, &[&two, &two, &two, &two, &two, &two, &read, &end, &two]),
    ]
}
