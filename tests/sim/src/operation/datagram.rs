//! Datagrams: to any queue pair of the other host that takes them, and to those that must not.

use roced_types::Qpn;

use super::{Composer, Operation};
use crate::{
    layout::NO_KEY,
    message::{Kind, Message, Outcome},
};

pub(super) const SEND: Operation = Operation { name: "UD SEND", weight: 25, compose: send };
pub(super) const SEND_IMM: Operation = Operation { name: "UD SEND imm", weight: 15, compose: send_imm };
pub(super) const WRONG_QKEY: Operation = Operation { name: "UD wrong Q_Key", weight: 6, compose: wrong_qkey };
pub(super) const WRONG_QP: Operation = Operation { name: "UD wrong QP", weight: 6, compose: wrong_qp };
pub(super) const WRONG_LKEY: Operation = Operation { name: "UD wrong lkey", weight: 1, compose: wrong_lkey };
pub(super) const TOO_LONG: Operation = Operation { name: "UD too long", weight: 1, compose: too_long };
pub(super) const NO_HANDLE: Operation = Operation { name: "UD no handle", weight: 1, compose: no_handle };
pub(super) const WRITE: Operation = Operation { name: "UD WRITE", weight: 1, compose: write };

fn send(composer: &mut Composer<'_>) {
    let message = composer.datagram();
    composer.post(message);
}

fn send_imm(composer: &mut Composer<'_>) {
    let message = composer.datagram();
    let message = composer.with_imm(message);
    composer.post(message);
}

/// A bit of it is wrong, never the one that asks for the own.
fn wrong_qkey(composer: &mut Composer<'_>) {
    let mut message = composer.datagram();
    message.to.qkey = (message.to.qkey ^ 1 << composer.random.below(31)) & !(1 << 31);
    composer.post(message);
}

/// To a queue pair of another service, or to none.
fn wrong_qp(composer: &mut Composer<'_>) {
    let mut message = composer.datagram();
    let refusing = std::mem::take(&mut composer.refusing);
    message.to.qpn = Qpn::from_wire(composer.random.pick(&refusing));
    composer.post(message);
}

fn wrong_lkey(composer: &mut Composer<'_>) {
    let message = composer.datagram();
    let mut sound = composer.write_in_two(1, 2 + message.length.min(composer.mtu - 2));
    (sound.kind, sound.to) = (Kind::Send, message.to);
    composer.post(Message { lkey: NO_KEY, outcome: Outcome::LocalProtection, ..sound });
}

fn too_long(composer: &mut Composer<'_>) {
    let to = composer.datagram().to;
    let length = composer.mtu + composer.random.within(1, 2000) as u32;
    let message = composer.send(length);
    composer.post(Message { to, outcome: Outcome::LocalLength, ..message });
}

/// No address handle, or one of another protection domain.
fn no_handle(composer: &mut Composer<'_>) {
    let mut message = composer.datagram();
    message.to.ah = composer.random.pick(&[crate::layout::OTHER_PD_AH, 1_000_000]);
    composer.post(Message { outcome: Outcome::LocalOperation, ..message });
}

/// IBTA v1 table 34: datagrams have no such operation.
fn write(composer: &mut Composer<'_>) {
    let length = composer.length(composer.mtu);
    let message = composer.write(length);
    composer.post(Message { outcome: Outcome::LocalOperation, ..message });
}
