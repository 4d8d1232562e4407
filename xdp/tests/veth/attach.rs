//! Attaching and detaching of the program, and the state that it leaves alone.

use std::{
    fs, iter,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use roced_xdp::{AttachedMode, XdpError, XdpMode, XdpProgram};

use crate::{
    frame::{frame, receive, send},
    needs_root,
    veth::{INTERFACE, MODES, Pair, config, start},
};

#[test]
fn it_gets_the_mode_it_asks_for_and_leaves_when_dropped() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    let cases = MODES.into_iter().chain([(XdpMode::Auto, AttachedMode::Native)]);
    for (asked, got) in cases {
        let program = pair.a.attach(asked);
        assert_eq!((program.mode(), program.interface()), (got, INTERFACE));
        let shown = pair.a.ip(&["-d", "link", "show", INTERFACE]);
        let word = match got {
            AttachedMode::Native => " xdp ",
            AttachedMode::Generic => " xdpgeneric ",
        };
        assert!(shown.contains(word), "{asked:?}: {shown}");
        drop(program);
        assert!(!pair.a.has_program(), "{asked:?}");
    }
}

/// A long MTU is no obstacle, because the program knows frames of several buffers.
#[test]
fn a_long_mtu_is_no_obstacle() {
    needs_root!();
    let pair = Pair::new(9000, 1, 1);
    assert_eq!(pair.a.attach(XdpMode::Native).mode(), AttachedMode::Native);
}

#[test]
fn another_program_is_left_alone() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    let refused = |asked| {
        let error = pair.a.run(|| XdpProgram::attach(INTERFACE, asked)).expect_err("it is taken");
        assert!(matches!(error, XdpError::ProgramPresent { .. }), "{asked:?}: {error:?}");
        assert!(error.to_string().contains("an XDP program is on veth0 already"), "{error}");
    };
    for (first, _) in MODES {
        let program = pair.a.attach(first);
        let before = pair.a.ip(&["-d", "link", "show", INTERFACE]);
        for second in [XdpMode::Native, XdpMode::Generic, XdpMode::Auto] {
            refused(second);
        }
        assert_eq!(pair.a.ip(&["-d", "link", "show", INTERFACE]), before, "and the first is untouched");
        drop(program);
        // A process that another test begins has its link until it executes its program.
        let begin = Instant::now();
        while pair.a.has_program() {
            assert!(begin.elapsed() < Duration::from_secs(20), "{first:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }
    // One attached for good, as ip(8) does it.
    let object = tempfile::NamedTempFile::new().expect("a scratch file");
    fs::write(object.path(), roced_ebpf::OBJECT).expect("a few KiB");
    let path = object.path().to_str().expect("a plain name");
    for kind in ["xdpdrv", "xdpgeneric"] {
        pair.a.ip(&["link", "set", "dev", INTERFACE, kind, "object", path, "section", "xdp.frags"]);
        for second in [XdpMode::Native, XdpMode::Generic, XdpMode::Auto] {
            refused(second);
        }
        assert!(pair.a.has_program(), "{kind}");
        pair.a.ip(&["link", "set", "dev", INTERFACE, kind, "off"]);
    }
    assert_eq!(pair.a.attach(XdpMode::Auto).mode(), AttachedMode::Native);
}

/// Native veth wants an RX queue for each TX queue of the peer.
#[test]
fn too_few_queues_are_named_and_auto_goes_generic() {
    needs_root!();
    let pair = Pair::new(1500, 1, 2);
    let error = pair.a.run(|| XdpProgram::attach(INTERFACE, XdpMode::Native)).expect_err("one RX queue, two TX queues");
    assert!(matches!(error, XdpError::TooFewQueues { .. }), "{error:?}");
    let program = pair.a.attach(XdpMode::Auto);
    assert_eq!(program.mode(), AttachedMode::Generic);
}

/// The kernel's own traffic goes on under the program, and so does RoCE for which there is no
/// socket.
#[test]
fn the_kernels_traffic_stays_the_kernels() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    for mode in MODES {
        let _serving = (pair.a.serve(mode, 1), pair.b.serve(mode, 1));
        for destination in ["10.77.0.2", "fd00:77::2"] {
            let mut ping = pair.a.command("ping");
            ping.args(["-q", "-c", "2", "-i", "0.05", "-W", "5", destination]).stdout(Stdio::null());
            let status = start(&mut ping).and_then(|mut ping| ping.wait()).expect("ping(8) is there");
            assert!(status.success(), "{destination}, {mode:?}");
        }
    }
}

/// A queue that is closed gives its place free: the kernel passes its frames again, and a new
/// socket takes over.
#[test]
fn a_closed_socket_leaves_its_place() {
    needs_root!();
    let pair = Pair::new(1500, 1, 1);
    for mode in MODES {
        let (mut a, mut b) = (pair.a.serve(mode, 1), pair.b.serve(mode, 1));
        let mut sent = 0;
        for seed in 0..5 {
            let bytes = frame(pair.b.address, 64, seed);
            send(&mut a.queues[0], &bytes);
            assert!(receive(&mut b.queues[0], 1) == [bytes.clone()]);
            sent += 1;
            b.queues.clear();
            // To the kernel: at once, unless another thread is starting a program, which has the
            // socket too until it runs.
            let deadline = Instant::now() + Duration::from_secs(5);
            while b.program.verdicts().expect("counters")[1] <= u64::from(seed) {
                assert!(Instant::now() < deadline, "frames go on to a closed socket");
                send(&mut a.queues[0], &bytes);
                sent += 1;
                thread::sleep(Duration::from_millis(5));
            }
            b.queues.extend(iter::once(pair.b.open(&config())));
            b.program.bind_socket(0, b.queues[0].socket()).expect("its place is free");
        }
        let [redirected, no_socket, ..] = b.program.verdicts().expect("counters");
        assert!(
            redirected >= 5 && no_socket >= 5 && redirected + no_socket <= sent,
            "{redirected} {no_socket} {mode:?}"
        );
    }
}
