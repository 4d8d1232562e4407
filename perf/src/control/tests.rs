//! Tests of the channel between both sides.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    thread,
};

use super::*;

fn listener() -> (TcpListener, Peer) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
    let port = listener.local_addr().expect("bound").port();
    (listener, Peer::parse("127.0.0.1", port).expect("an address"))
}

/// Two ends that have said hello.
fn channel() -> (ControlChannel, ControlChannel) {
    let (listener, peer) = listener();
    let server = thread::spawn(move || {
        let stream = IncomingStream::Tcp(listener.accept().expect("a client").0);
        ControlChannel::accept(stream).expect("hello")
    });
    let client = ControlChannel::connect(&peer, false).expect("a server of the same version");
    (client, server.join().expect("the server does not fail"))
}

/// Result of `ControlChannel::connect` with a server that answers every connection with
/// `answer` and closes it when told.
fn connect_to(answer: &'static str, keep_open: Duration) -> String {
    let (listener, peer) = listener();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.write_all(answer.as_bytes()).expect("the client listens");
        stream.set_read_timeout(Some(keep_open)).expect("a socket");
        let mut rest = Vec::new();
        // Ends by the client's close or by the time.
        let _ = stream.read_to_end(&mut rest);
    });
    let message = format!("{:#}", ControlChannel::connect(&peer, false).expect_err("this is no server"));
    server.join().expect("the fake server does not fail");
    message
}

fn setup() -> Setup {
    Setup {
        run: Run {
            kind: RunKind::Bw,
            op: Op::Write,
            size: 1 << 31,
            depth: 4096,
            verify: true,
            seed: u64::MAX,
            path: PathOptions {
                rocev1: false,
                traffic_class: 255,
                hop_limit: 1,
                service_level: 7,
                flow_label: 0xf_ffff,
                timeout: 31,
                retry: 0,
            },
        },
        gid: "fd00:10::1".parse().expect("an address"),
        mtu: 4096,
        mtu_asked: Some(4096),
        // As many as a run may have, with the longest numbers: the line must be allowed.
        qps: vec![
            QpInfo {
                qpn: 0xff_ffff,
                psn: 0xff_ffff,
                memory: Some(RemoteMemoryInfo { va: u64::MAX, rkey: u32::MAX, bytes: u64::MAX }),
            };
            crate::cli::QPS_MAX as usize
        ],
    }
}

#[test]
fn messages_arrive_at_the_other_side() {
    let (mut client, mut server) = channel();
    let said = ControlMessage::Setup(setup());
    client.say(&said).expect("the server listens");
    assert_eq!(server.listen(ANSWER_TIMEOUT).expect("the client spoke"), said);
    let said = ControlMessage::Finish { messages: vec![0, u64::MAX] };
    server.say(&said).expect("the client listens");
    assert_eq!(client.listen(ANSWER_TIMEOUT).expect("the server spoke"), said);
    assert_eq!(client.peer_ip().expect("connected"), server.local_ip().expect("connected"));
}

#[test]
fn signs_of_life_are_no_answer() {
    let (mut client, mut server) = channel();
    for _ in 0..3 {
        client.say(&ControlMessage::Alive).expect("the server listens");
    }
    let error = server.listen(Duration::from_millis(50)).expect_err("nothing was said");
    assert!(error.to_string().contains("no answer"), "{error}");
    assert_eq!(server.look().expect("the client is there"), None);
}

#[test]
fn a_side_that_is_busy_gives_signs_of_life() {
    let (_client, mut server) = channel();
    let before = server.last_heard;
    let error = server.listen(ALIVE_INTERVAL * 3).expect_err("nothing else was said");
    assert!(error.to_string().contains("no answer"), "{error}");
    assert!(server.last_heard > before, "the client was alive");
}

#[test]
fn a_peer_is_not_called_silent_without_a_listener() {
    let (mut client, mut server) = channel();
    client.say(&ControlMessage::Finish { messages: Vec::new() }).expect("the server is there");
    server.last_heard -= 2 * SILENCE_MAX;
    server.listen(ANSWER_TIMEOUT).expect("its message lies there");
    server.last_heard -= 2 * SILENCE_MAX;
    thread::sleep(ALIVE_INTERVAL * 2);
    assert_eq!(server.look().expect("signs of life lie there"), None);
}

#[test]
fn silence_is_not_borne_for_ever() {
    let (client, mut server) = channel();
    // As if it was stopped: nothing says anything any more.
    client.mouth.closed.store(true, Ordering::Release);
    thread::sleep(ALIVE_INTERVAL + Duration::from_millis(100));
    server.look().expect("not silent for long");
    server.last_heard -= SILENCE_MAX;
    let error = server.look().expect_err("silent for too long");
    assert!(error.to_string().contains("silent for 10 s"), "{error}");
    let error = server.listen(WORK_TIMEOUT).expect_err("silent for too long");
    assert!(error.to_string().contains("silent for 10 s"), "{error}");
}

#[test]
fn a_failure_reaches_the_other_side_even_when_the_speaker_is_gone() {
    let (mut client, mut server) = channel();
    server.say_failed(&anyhow!("out of cheese").context("making the queue pairs"));
    drop(server);
    let error = client.look().expect_err("the server failed");
    assert_eq!(error.to_string(), "the peer says: making the queue pairs: out of cheese");
}

#[test]
fn a_peer_that_goes_is_noticed_in_the_middle() {
    let (mut client, server) = channel();
    assert_eq!(client.look().expect("the server is there"), None);
    drop(server);
    let error = client.listen(ANSWER_TIMEOUT).expect_err("the server is gone");
    assert!(error.to_string().contains("closed the connection"), "{error}");
    client.look().expect_err("and stays gone");
}

#[test]
fn another_version_is_named() {
    let message = connect_to("{\"say\":\"hello\",\"protocol\":99,\"version\":\"7.0.0\"}\n", Duration::from_secs(5));
    assert!(message.contains("roce-perf 7.0.0 with protocol 99"), "{message}");
}

#[test]
fn an_unknown_peer_is_told_apart() {
    let message = connect_to("SSH-2.0-OpenSSH_9.2\r\n", Duration::from_secs(5));
    assert!(message.contains("does not speak as a roce-perf server") && message.contains("SSH-2.0"), "{message}");
}

#[test]
fn a_line_without_end_is_refused() {
    let (mut client, server) = channel();
    let flood = thread::spawn(move || {
        // Fails when the other side has heard enough.
        while server.mouth.stream.send(&[b'x'; 65536]).is_ok() {}
    });
    let error = client.listen(ANSWER_TIMEOUT).expect_err("this is no line");
    assert!(error.to_string().contains("without the end of a line"), "{error}");
    drop(client);
    flood.join().expect("the flood ends");
}

#[test]
fn a_peer_that_never_answers_is_given_up_within_seconds() {
    let begun = Instant::now();
    let message = connect_to("", Duration::from_secs(20));
    assert!(message.contains("no answer within 5 s"), "{message}");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn an_absent_peer_is_reported_at_once() {
    let (listener, peer) = listener();
    drop(listener);
    let message = format!("{:#}", ControlChannel::connect(&peer, false).expect_err("nothing listens"));
    assert!(message.contains("is `roce-perf serve` running there?"), "{message}");
}
