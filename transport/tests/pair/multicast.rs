//! Multicast: one datagram, and every queue pair of host 1 that is attached to its group has a
//! copy.

use roced_transport::{
    ah::AhEntry,
    io::{Egress, FrameMut},
    psn::Psn,
    qp::{PathState, ServiceType},
    reject::{Disposition, DropReason, Reject},
    wire::{
        Deth,
        bth::Bth,
        frame::destination,
        headers::Headers,
        opcode::{self, Opcode},
        parse,
    },
    work::{DatagramTo, RecvWork, SendWork},
};
use roced_types::{
    CompletionOp, EndpointId, QpAttributes, Qpn, SendOp, Sge, Status, attribute, completion_flags, send_flags, state,
};

use crate::{
    datagram::inject,
    host::{OUR_QKEY, PD, Pair, Settings, sge, work},
};

/// The address handle that [`to_group`] makes.
const GROUP_AH: u32 = 1;
const GRH: usize = 40;

fn pair(ipv6: bool, members: &[u32], settings: Settings) -> Pair {
    let mut pair = Pair::new(Settings { service: ServiceType::Ud, ipv6, ..settings });
    for index in [6, 7] {
        pair.connect_another(index);
    }
    for index in members {
        attach(&mut pair, *index, group(ipv6, 1));
    }
    pair
}

/// An IPv4 or IPv6 multicast group as a GID.
fn group(ipv6: bool, last: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    if ipv6 {
        gid[..2].copy_from_slice(&[0xff, 0x0e]);
    } else {
        gid[10..14].copy_from_slice(&[0xff, 0xff, 239, 1]);
    }
    gid[15] = last;
    gid
}

fn attach(pair: &mut Pair, index: u32, group: [u8; 16]) {
    pair.turn_to(index);
    let qpn = pair.hosts[1].qpn;
    pair.hosts[1].endpoint.attach(qpn, group).expect("room");
}

/// A receive on queue pair `index` of host 1, of that number, at a thousand times as much.
fn post_recv(pair: &mut Pair, index: u32) {
    pair.turn_to(index);
    pair.hosts[1].post_recv(index.into(), &[sge(u64::from(index) * 1000, 100)]);
}

/// Makes host 0 send to a group from now on.
fn to_group(pair: &mut Pair, group: [u8; 16]) -> DatagramTo {
    let path = pair.path_to(0, Egress::Nic { flow: 1 }, group);
    let handle = AhEntry { pd: PD, path: PathState::Ready(path), mtu_bytes: 1024, static_rate_kbit_per_s: 0 };
    pair.hosts[0].endpoint.insert_ah(GROUP_AH, handle).expect("room");
    DatagramTo { ah: GROUP_AH, qpn: Qpn::MULTICAST, qkey: OUR_QKEY }
}

fn send(pair: &mut Pair, to: DatagramTo, data: &[Sge]) {
    pair.hosts[0].post(&SendWork { to, ..work(1, SendOp::Send, data, 0) });
    pair.settle();
    assert_eq!(pair.hosts[0].take(), [(1, Status::Success)], "a sender never learns");
}

/// A frame from host 0 to `group`, with that receiver in its BTH.
fn frame(pair: &Pair, group: [u8; 16], receiver: Qpn, opcode: Opcode) -> Vec<u8> {
    let deth = Deth { qkey: OUR_QKEY, source_qpn: pair.hosts[0].qpn };
    let bth = Bth::new(opcode, receiver, Psn::new(9));
    let headers = Headers { deth: (opcode == opcode::UD_SEND_ONLY).then_some(deth), ..Headers::new(bth) };
    let path = pair.path_to(0, Egress::Nic { flow: 0 }, group);
    let mut frame = vec![0; path.frame_bytes(&headers, 4)];
    path.fill(&mut FrameMut::single(&mut frame), &headers, 4, |piece| {
        piece.fill(b'x');
        Ok(())
    })
    .expect("filled");
    frame
}

#[test]
fn every_attached_queue_pair_has_its_copy_and_no_other() {
    for ipv6 in [false, true] {
        let (wanted, other) = (group(ipv6, 1), group(ipv6, 2));
        let mut pair = pair(ipv6, &[5, 7], Settings::default());
        for (index, gid) in [(6, other), (7, other), (7, wanted)] {
            attach(&mut pair, index, gid);
        }
        for index in [5, 6, 7] {
            post_recv(&mut pair, index);
        }
        let to = to_group(&mut pair, wanted);
        let data = [sge(9, 30)];
        send(&mut pair, to, &data);
        assert_eq!(pair.hosts[1].take(), [(5, Status::Success), (7, Status::Success)]);
        let (sent, memory) = (&pair.hosts[0].app.memory[9..39], &pair.hosts[1].app.memory);
        assert!(memory[5040..][..30] == *sent && memory[7040..][..30] == *sent);
        // One has left, one has no receive any more: no member takes it, and each has a reason.
        pair.turn_to(5);
        let qpn = pair.hosts[1].qpn;
        assert!(pair.hosts[1].endpoint.detach(qpn, wanted) && !pair.hosts[1].endpoint.detach(qpn, wanted));
        send(&mut pair, to, &data);
        assert_eq!(pair.hosts[1].drops(), [("drop_receiver_not_ready", 1)].into());
        // And one that ends leaves all its groups.
        pair.turn_to(7);
        let qpn = pair.hosts[1].qpn;
        pair.hosts[1].endpoint.remove_qp(qpn).expect("there");
        pair.turn_to(5);
        send(&mut pair, to, &data);
        assert_eq!(pair.hosts[1].drops().get("drop_no_such_group"), Some(&1));
    }
}

#[test]
fn each_copy_stands_behind_the_header_that_brought_it() {
    for ipv6 in [false, true] {
        let gid = group(ipv6, 1);
        let mut pair = pair(ipv6, &[5, 6], Settings::default());
        pair.hosts[1].app.memory.fill(0xee);
        post_recv(&mut pair, 5);
        post_recv(&mut pair, 6);
        let to = to_group(&mut pair, gid);
        let data = [sge(9, 30)];
        let flags = send_flags::SIGNALED | send_flags::SOLICITED;
        pair.hosts[0].post(&SendWork { to, flags, ..work(1, SendOp::SendImm, &data, 0) });
        pair.settle();
        let (source, sender) = (pair.hosts[0].gid, pair.hosts[0].qpn);
        let completions = std::mem::take(&mut pair.hosts[1].app.completions);
        assert_eq!(completions.len(), 2);
        for cqe in completions {
            assert_eq!((cqe.status, cqe.op, cqe.byte_len as usize), (Status::Success, CompletionOp::Recv, GRH + 30));
            let family = if ipv6 { 0 } else { completion_flags::IPV4 };
            assert_eq!(cqe.flags, completion_flags::GRH | completion_flags::IMM | completion_flags::SOLICITED | family);
            assert_eq!((cqe.src_qpn, cqe.imm), (sender.get(), [1, 2, 3, 4]));
            assert_eq!(cqe.qpn, Qpn::new(pair.hosts[1].qpn.endpoint(), cqe.wr_id as u32));
            let header = &pair.hosts[1].app.memory[cqe.wr_id as usize * 1000..][..GRH];
            if ipv6 {
                assert_eq!((header[0] >> 4, &header[8..24], &header[24..]), (6, &source[..], &gid[..]));
            } else {
                assert!(header[..20].iter().all(|byte| *byte == 0));
                assert_eq!((header[20], &header[32..36], &header[36..]), (0x45, &source[12..], &gid[12..]));
            }
        }
    }
}

/// Two that are attached take an entry each for every datagram; when one entry is left, one of them
/// goes without.
#[test]
fn members_that_share_receives_take_one_each() {
    let mut pair = pair(false, &[5, 7], Settings { srq: Some(PD), ..Settings::default() });
    let srqn = pair.srqn();
    for wr_id in 0..3 {
        let sges = [sge(500_000 + wr_id * 1000, 100)];
        pair.hosts[1].endpoint.post_srq_recv(srqn, &RecvWork { wr_id, sges: &sges }).expect("it is there");
    }
    let to = to_group(&mut pair, group(false, 1));
    send(&mut pair, to, &[sge(9, 30)]);
    let endpoint = pair.hosts[1].qpn.endpoint();
    let got: Vec<_> = pair.hosts[1].app.completions.drain(..).map(|cqe| (cqe.wr_id, cqe.qpn, cqe.status)).collect();
    assert_eq!(got, [(0, Qpn::new(endpoint, 5), Status::Success), (1, Qpn::new(endpoint, 7), Status::Success)]);
    for at in [500_040, 501_040] {
        assert!(pair.hosts[1].app.memory[at..][..30] == pair.hosts[0].app.memory[9..39]);
    }
    send(&mut pair, to, &[sge(9, 30)]);
    assert_eq!(pair.hosts[1].take(), [(2, Status::Success)]);
    assert_eq!(pair.hosts[1].drops(), [("drop_receiver_not_ready", 1)].into());
    assert_eq!(pair.hosts[1].endpoint.srq(srqn).expect("there").len(), 0);
}

/// Each member hears its own partition only, as with any packet.
#[test]
fn members_in_another_partition_hear_nothing() {
    let mut pair = pair(false, &[5, 6], Settings::default());
    post_recv(&mut pair, 5);
    post_recv(&mut pair, 6);
    pair.turn_to(6);
    let host = &mut pair.hosts[1];
    let elsewhere = QpAttributes { state: state::INIT, pkey_index: 1, qkey: OUR_QKEY, ..QpAttributes::default() };
    let mask = attribute::STATE | attribute::PKEY_INDEX | attribute::PORT | attribute::QKEY;
    let steps = [(state::RESET, attribute::STATE), (state::INIT, mask), (state::RTR, attribute::STATE)];
    for (state, mask) in steps {
        let attributes = QpAttributes { state, ..elsewhere };
        host.endpoint.modify_qp(host.qpn, mask, &attributes, None).expect("it may");
    }
    host.post_recv(6, &[sge(6000, 100)]);
    pair.turn_to(5);
    let to = to_group(&mut pair, group(false, 1));
    send(&mut pair, to, &[sge(9, 30)]);
    assert_eq!(pair.hosts[1].take(), [(5, Status::Success)], "it is attached still, but in another partition");
    assert_eq!(pair.hosts[1].drops(), [("drop_bad_pkey", 1)].into());
}

/// One of three does not let it in, one is in a state in which it takes nothing: each counts, and
/// the third has it.
#[test]
fn a_member_that_does_not_take_it_costs_the_others_nothing() {
    let mut pair = pair(false, &[5, 6, 7], Settings::default());
    for index in [5, 6, 7] {
        post_recv(&mut pair, index);
    }
    let modify = |pair: &mut Pair, index, mask, attributes| {
        pair.turn_to(index);
        let host = &mut pair.hosts[1];
        host.endpoint.modify_qp(host.qpn, mask, &attributes, None).expect("it may");
    };
    modify(&mut pair, 5, attribute::QKEY, QpAttributes { qkey: OUR_QKEY + 1, ..QpAttributes::default() });
    modify(&mut pair, 6, attribute::STATE, QpAttributes { state: state::RESET, ..QpAttributes::default() });
    let to = to_group(&mut pair, group(false, 1));
    send(&mut pair, to, &[sge(9, 30)]);
    assert_eq!(pair.hosts[1].take(), [(7, Status::Success)]);
    assert_eq!(pair.hosts[1].drops(), [("drop_bad_qkey", 1), ("drop_wrong_state", 1)].into());
    // No member takes it: each has a reason, the last one is returned to the caller.
    assert_eq!(
        pair.deliver(1, &frame(&pair, group(false, 1), Qpn::MULTICAST, opcode::UD_SEND_ONLY)),
        Disposition::Dropped(DropReason::ReceiverNotReady)
    );
    let drops = [("drop_bad_qkey", 2), ("drop_wrong_state", 2), ("drop_receiver_not_ready", 1)];
    assert_eq!(pair.hosts[1].drops(), drops.into());
}

#[test]
fn a_group_and_its_queue_pair_number_go_together() {
    for ipv6 in [false, true] {
        let gid = group(ipv6, 1);
        let mut pair = pair(ipv6, &[5], Settings::default());
        post_recv(&mut pair, 5);
        // To all of a group, but sent to our own address.
        let disposition = inject(&mut pair, Qpn::MULTICAST, OUR_QKEY, b"x");
        assert_eq!(disposition, Disposition::Dropped(DropReason::NoSuchGroup));
        // To one queue pair, attached or not, or to none, but sent to a group.
        for (index, reason) in [(5, DropReason::WrongAddress), (6, DropReason::WrongAddress), (9, DropReason::NoSuchQp)]
        {
            let receiver = Qpn::new(pair.hosts[1].qpn.endpoint(), index);
            let frame = frame(&pair, gid, receiver, opcode::UD_SEND_ONLY);
            assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(reason));
        }
        // To a group without local members.
        let frame_to_others = frame(&pair, group(ipv6, 2), Qpn::MULTICAST, opcode::UD_SEND_ONLY);
        assert_eq!(pair.deliver(1, &frame_to_others), Disposition::Dropped(DropReason::NoSuchGroup));
        let drops = [("drop_no_such_group", 2), ("drop_wrong_address", 2), ("drop_no_such_qp", 1)];
        assert_eq!(pair.hosts[1].drops(), drops.into());
        assert!(pair.hosts[1].take().is_empty());
        let right = frame(&pair, gid, Qpn::MULTICAST, opcode::UD_SEND_ONLY);
        let pieces = [&right[..]];
        assert_eq!((parse(&pieces).expect("ours").destination, destination(&pieces)), (gid, Some(gid)));
        assert_eq!(pair.deliver(1, &right), Disposition::Accepted);
    }
}

#[test]
fn corrupted_packets_and_other_services_reach_no_member() {
    let mut pair = pair(false, &[5, 6], Settings::default());
    post_recv(&mut pair, 5);
    post_recv(&mut pair, 6);
    let gid = group(false, 1);
    let mut damaged = frame(&pair, gid, Qpn::MULTICAST, opcode::UD_SEND_ONLY);
    let last = damaged.len() - 5;
    damaged[last] ^= 1;
    assert_eq!(pair.deliver(1, &damaged), Disposition::Dropped(DropReason::BadIcrc));
    assert_eq!(pair.hosts[1].drops(), [("drop_bad_icrc", 1)].into(), "once, not for each");
    for of_a_connection in [opcode::RC_SEND_ONLY, opcode::UC_SEND_ONLY] {
        let frame = frame(&pair, gid, Qpn::MULTICAST, of_a_connection);
        assert_eq!(pair.deliver(1, &frame), Disposition::Dropped(DropReason::WrongService));
    }
    assert!(pair.hosts[1].take().is_empty());
    assert_eq!(pair.deliver(1, &frame(&pair, gid, Qpn::MULTICAST, opcode::UD_SEND_ONLY)), Disposition::Accepted);
    assert_eq!(pair.hosts[1].take(), [(5, Status::Success), (6, Status::Success)]);
}

/// An endpoint knows the members on other endpoints, and does not drop their frames; it has room
/// for its configured number.
#[test]
fn members_elsewhere_are_known_and_there_is_room_for_so_many() {
    let mut pair = pair(false, &[6], Settings::default());
    let gid = group(false, 1);
    let own = pair.hosts[1].qpn;
    let other = EndpointId::new(7).expect("a small number");
    let endpoint = &mut pair.hosts[1].endpoint;
    let [first, second, third] = [3, 4, 5].map(|index| Qpn::new(other, index));
    endpoint.attach(second, gid).expect("room");
    endpoint.attach(first, gid).expect("room");
    assert_eq!(endpoint.members(&gid).collect::<Vec<_>>(), [own, first, second]);
    endpoint.attach(first, group(false, 2)).expect("room");
    endpoint.attach(second, group(false, 3)).expect("room");
    assert_eq!(endpoint.attach(third, gid), Err(Reject::NoRoom));
    assert_eq!(endpoint.attach(second, gid), Ok(()), "twice is once");
    let nobody = Qpn::new(own.endpoint(), 9);
    assert_eq!(endpoint.attach(nobody, gid), Err(Reject::NoSuchQp(nobody)));
    assert!(endpoint.detach(own, gid));
    let elsewhere = frame(&pair, gid, Qpn::MULTICAST, opcode::UD_SEND_ONLY);
    assert_eq!(pair.deliver(1, &elsewhere), Disposition::Accepted, "each receiver passes it on");
    assert!(pair.hosts[1].drops().is_empty() && pair.hosts[1].take().is_empty());
}
