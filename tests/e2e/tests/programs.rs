//! Programs that know nothing of roced, as the distribution has them: those of libibverbs,
//! perftest, and rdma-core's own tests.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use crate::{
    Settings,
    lab::{Host, Lab, SOON, repository},
    program::{Ended, Program, both_ended_well, within},
};

/// Host b as they are told of it.
const PEER: &str = crate::PEER_IPV4;
/// The GID of IPv4: of index 0 is the link-local one.
const GID: &str = "1";
/// Where they listen.
const PORT: u16 = 18515;
/// How long a run of any of them may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);
/// How long all sizes may take: `ib_write_lat` watches memory without ever letting others run, at
/// both ends. It took 70 to 110 s on two cores that ten threads wanted.
const LIMIT_OF_ALL_SIZES: Duration = Duration::from_secs(300);

/// `program` over our library, on a host.
fn start(lab: &Lab, host: Host, program: &str, arguments: &[&str]) -> Result<Program> {
    lab.start(host, "roce-run", &[&[program], arguments].concat())
}

fn run(lab: &Lab, host: Host, program: &str, arguments: &[&str]) -> Result<Ended> {
    start(lab, host, program, arguments)?.end(LIMIT)
}

/// A server on b, and then its client on a, with the same options: the client's output, when both
/// end well.
fn pair(lab: &Lab, program: &str, options: &[&str]) -> Result<String> {
    let mut server = start(lab, Host::B, program, options)?;
    let listens = || listens(&mut server, PORT);
    ensure!(within(SOON, listens)?, "{program} {options:?}: does not listen");
    let limit = if options.contains(&"-a") { LIMIT_OF_ALL_SIZES } else { LIMIT };
    let client = start(lab, Host::A, program, &[options, &[PEER]].concat()).and_then(|client| client.end(limit));
    Ok(both_ended_well(client, server.end(LIMIT))?.0)
}

/// Whether a program's host has a listener on a TCP port; a program that has ended never will.
pub(crate) fn listens(program: &mut Program, port: u16) -> Result<bool> {
    ensure!(program.runs()?, "the server ended early");
    let listening = |table: &str| {
        let path = format!("/proc/{}/net/{table}", program.pid());
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        let is_it = |line: &str| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or_default();
            local.ends_with(&format!(":{port:04X}")) && fields.nth(1) == Some("0A")
        };
        anyhow::Ok(text.lines().any(is_it))
    };
    Ok(listening("tcp")? || listening("tcp6")?)
}

/// ibv_devices and ibv_devinfo show the device and its addresses.
pub(crate) fn devices_are_listed(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let listed = run(&lab, Host::A, "ibv_devices", &[])?.success()?;
    ensure!(listed.contains("roce0"), "{listed}");
    let told = run(&lab, Host::A, "ibv_devinfo", &["-v"])?.success()?;
    for wanted in ["PORT_ACTIVE (4)", "4096 (5)", "GID[  1]:\t\t::ffff:10.10.0.1, RoCE v2", "ATOMIC_HCA"] {
        ensure!(told.contains(wanted), "no {wanted} in {told}");
    }
    Ok(())
}

/// The library in a folder that comes before the system's: under its SONAME it is taken, without
/// any preloading.
pub(crate) fn the_library_as_a_drop_in(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let folder = tempfile::tempdir()?;
    symlink(built_library(&lab)?, folder.path().join("libibverbs.so.1"))?;
    let path = format!("LD_LIBRARY_PATH={}", folder.path().display());
    let listed = lab.run(Host::A, "env", &[&path, "ibv_devices"], SOON)?.success()?;
    ensure!(listed.contains("roce0"), "{listed}");
    Ok(())
}

/// The library that `roce-run` takes.
pub(crate) fn built_library(lab: &Lab) -> Result<PathBuf> {
    let which = lab.run(Host::A, "sh", &["-c", "command -v roce-run"], SOON)?.success()?;
    Ok(Path::new(which.trim()).parent().context("a folder")?.join("libibverbs.so"))
}

/// Libraries that replace sockets replace epoll as well, and hold a lock meanwhile.
pub(crate) fn a_program_with_an_epoll_of_its_own(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let folder = tempfile::tempdir()?;
    let program = compile_with("tests/e2e/epoll_of_its_own.c", folder.path(), &["-rdynamic", "-libverbs"])?;
    let told = lab.run(Host::A, "roce-run", &[&program], LIMIT)?.success()?;
    ensure!(told.contains("opened without epoll of the program"), "{told}");
    Ok(())
}

/// Programs that open the library by either name, as NCCL does, get this one and not the system's,
/// whether the development package's `libibverbs.so` is installed or not; with each symbol of
/// rdma-core's newest release by its version, preloaded or by the search path.
pub(crate) fn programs_that_open_the_library(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let folder = tempfile::tempdir()?;
    let program = compile_without_libraries("tests/e2e/opener.c", folder.path())?;
    let list = repository().join("verbs/rdma-core-symbols").display().to_string();
    let installed = system_libraries()?;
    // As packages install it.
    let library = built_library(&lab)?;
    for name in ["libibverbs.so", "libibverbs.so.1"] {
        symlink(&library, folder.path().join(name))?;
    }
    let path = format!("LD_LIBRARY_PATH={}", folder.path().display());
    for link in ["present", "absent"] {
        // A view of the system's libraries with the link, or without, in a mount namespace.
        let scratch = folder.path().join(link);
        let way = format!(
            "mkdir {scratch} 2>/dev/null; mount -t tmpfs none {scratch} && mkdir {scratch}/above {scratch}/work && \
             mount -t overlay overlay -o lowerdir={installed},upperdir={scratch}/above,workdir={scratch}/work {installed} && \
             rm -f {installed}/libibverbs.so && {link} && \"$@\"",
            scratch = scratch.display(),
            link = if link == "present" {
                format!("ln -s libibverbs.so.1 {installed}/libibverbs.so")
            } else {
                "true".to_owned()
            },
        );
        for name in ["libibverbs.so", "libibverbs.so.1"] {
            for found in [&["roce-run"][..], &["env", &path]] {
                let opener = [found, &[&program, name, "roce0", &list]].concat();
                let words = [&["--mount", "sh", "-c", &way, "-"], &opener[..]].concat();
                let told = lab.run(Host::A, "unshare", &words, LIMIT)?.success()?;
                let all = told.starts_with("0 of ") && told.contains("opened roce0");
                ensure!(all, "{name}, the link {link}, {found:?}: {told}");
            }
        }
    }
    Ok(())
}

/// Folder of the system's `libibverbs.so.1`.
fn system_libraries() -> Result<String> {
    let cache = Command::new("ldconfig").arg("-p").output()?;
    let cache = String::from_utf8(cache.stdout)?;
    let line = cache.lines().find(|line| line.contains("libibverbs.so.1 ") && !line.contains("/roced/"));
    let file = line.and_then(|line| line.split("=> ").nth(1)).context("the system has no libibverbs.so.1")?;
    let folder = fs::canonicalize(Path::new(file).parent().context("a folder")?)?;
    Ok(folder.display().to_string())
}

/// Programs that were built with a newer rdma-core start, and find its functions.
pub(crate) fn functions_of_newer_versions(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let folder = tempfile::tempdir()?;
    let program = compile("tests/e2e/newer.c", folder.path())?;
    let told = run(&lab, Host::A, &program, &["roce0", GID])?.success()?;
    ensure!(told.contains("all there"), "{told}");
    Ok(())
}

/// Rates of queue pairs and of addresses are told back, and kept.
pub(crate) fn rates_are_told_and_kept(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let folder = tempfile::tempdir()?;
    let program = compile("tests/e2e/rates.c", folder.path())?;
    let told = run(&lab, Host::A, &program, &["roce0", GID])?.success()?;
    print!("\n{told}");
    Ok(())
}

/// Wrong calls, and calls in a wrong order, fail by the error of verbs and do no harm.
pub(crate) fn wrong_calls_are_refused(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let folder = tempfile::tempdir()?;
    let program = compile("tests/e2e/misuse.c", folder.path())?;
    let told = run(&lab, Host::A, &program, &["roce0", GID])?.success()?;
    ensure!(told.contains("all refused"), "{told}");
    Ok(())
}

/// A program that waits for asynchronous events hears of the link, of addresses, and once, at the
/// end, that the device is lost.
pub(crate) fn events_are_told(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let mut watch = start(&lab, Host::A, "ibv_asyncwatch", &["-d", "roce0"])?;
    let has_opened = || Ok(lab.ctl(Host::A, "status")?["sessions"][0]["device"] == "roce0");
    ensure!(within(SOON, has_opened)?, "it does not open the device");
    for (state, active) in [("down", false), ("up", true)] {
        lab.run(Host::A, "ip", &["link", "set", "eth0", state], SOON)?.success()?;
        let seen = || {
            let told = run(&lab, Host::A, "ibv_devinfo", &[])?.success()?;
            Ok(told.contains("PORT_ACTIVE") == active)
        };
        ensure!(within(SOON, seen)?, "the port is not {state}");
    }
    ensure!(watch.runs()?, "it ended early");
    lab.stop_daemon(Host::A, Signal::SIGKILL)?;
    let told = watch.end(SOON)?.output;
    let kinds: Vec<_> = told.lines().filter_map(|line| line.split("IBV_EVENT_").nth(1)?.split(' ').next()).collect();
    ensure!(kinds.contains(&"PORT_ERR") && kinds.contains(&"PORT_ACTIVE"), "{told}");
    ensure!(kinds.iter().filter(|kind| **kind == "DEVICE_FATAL").count() == 1, "{told}");
    ensure!(kinds.last() == Some(&"DEVICE_FATAL"), "{told}");
    Ok(())
}

/// The examples of libibverbs, at two path MTUs, each byte that they receive looked at.
pub(crate) fn pingpongs(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let rounds = if settings.full { "1000" } else { "100" };
    for mtu in ["1024", "4096"] {
        for more in [&[][..], &["-e"], &["-N"], &["-t"], &["-e", "-N"]] {
            pingpong(&lab, "ibv_rc_pingpong", &[&["-m", mtu, "-n", rounds, "-c"], more].concat())?;
        }
        for more in [&[][..], &["-e"]] {
            pingpong(&lab, "ibv_uc_pingpong", &[&["-m", mtu, "-n", rounds, "-c"], more].concat())?;
            pingpong(&lab, "ibv_srq_pingpong", &[&["-m", mtu, "-n", rounds, "-c"], more].concat())?;
        }
    }
    for more in [&[][..], &["-e"]] {
        pingpong(&lab, "ibv_ud_pingpong", &[&["-n", rounds, "-c"], more].concat())?;
    }
    Ok(())
}

fn pingpong(lab: &Lab, program: &str, options: &[&str]) -> Result<()> {
    let told = pair(lab, program, &[&["-g", GID], options].concat())?;
    ensure!(told.contains("iters in") && !told.contains("invalid data"), "{program} {options:?}: {told}");
    Ok(())
}

/// perftest: each operation, bandwidth and latency, over each service that has it, with events,
/// both ways, with several queue pairs and with a shared receive queue; of each operation's
/// bandwidth and latency all sizes from 2 bytes to 8 MiB.
pub(crate) fn perftest(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let runs: &[(&str, &[&str])] = &[
        ("ib_send_bw", &["-a", "-n", "64"]),
        ("ib_write_bw", &["-a", "-n", "64"]),
        ("ib_read_bw", &["-a", "-n", "64"]),
        ("ib_send_bw", &["-e", "-n", "64"]),
        ("ib_send_bw", &["-b", "-n", "64"]),
        ("ib_write_bw", &["-q", "4", "-n", "64"]),
        ("ib_read_bw", &["-q", "4", "-n", "64"]),
        ("ib_send_bw", &["--use-srq", "-q", "4", "-n", "64"]),
        ("ib_send_bw", &["-c", "UC", "-n", "64"]),
        ("ib_write_bw", &["-c", "UC", "-n", "64"]),
        ("ib_send_bw", &["-c", "UD", "-n", "64"]),
        ("ib_send_bw", &["-c", "UD", "-g", "-M", "0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3", "-n", "64"]),
        ("ib_atomic_bw", &["-A", "FETCH_AND_ADD", "-n", "64"]),
        ("ib_atomic_bw", &["-A", "CMP_AND_SWAP", "-n", "64"]),
        ("ib_send_lat", &["-a", "-n", "64"]),
        ("ib_send_lat", &["-e", "-n", "64"]),
        ("ib_send_lat", &["-c", "UC", "-n", "64"]),
        ("ib_send_lat", &["-c", "UD", "-n", "64"]),
        ("ib_write_lat", &["-a", "-n", "64"]),
        ("ib_read_lat", &["-a", "-n", "64"]),
        ("ib_atomic_lat", &["-n", "64"]),
    ];
    for (program, options) in runs {
        let told = pair(&lab, program, &[&["-F", "-x", GID], *options].concat())?;
        let sizes = told.lines().filter(|line| line.trim_start().starts_with(|it: char| it.is_ascii_digit())).count();
        let wanted = if options.contains(&"-a") { 23 } else { 1 };
        ensure!(sizes == wanted, "{program} {options:?}: {told}");
    }
    Ok(())
}

/// rdma-core's own tests, as the package of pyverbs brings them. A test that is skipped because
/// roced lacks a feature counts as not run.
pub(crate) fn the_tests_of_rdma_core(_: &Settings) -> Result<()> {
    /// Tests that pass, by module; `docs/verbs.md` says why the others do not run.
    const PASSING: &[(&str, usize)] = &[
        ("addr", 3),
        ("atomic", 7),
        ("cq", 4),
        ("cq_events", 2),
        ("cqex", 4),
        ("device", 13),
        ("fork", 1),
        ("mr", 12),
        ("parent_domain", 5),
        ("pd", 4),
        ("qp", 21),
        ("qpex", 18),
        ("relaxed_ordering", 2),
    ];
    let lab = Lab::up(&[])?;
    let folder = tempfile::tempdir()?;
    let tests = unpack_tests(folder.path())?;
    for (module, wanted) in PASSING {
        let mut arguments = vec![tests.as_str(), "-v", "--dev", "roce0", "--port", "1", "--gid", GID];
        let name = format!("tests.test_{module}");
        arguments.push(&name);
        // It prints all on stderr.
        let told = run(&lab, Host::A, "/usr/bin/python3", &arguments)?.errors;
        let ends = |how: &str| told.lines().filter(|line| line.ends_with(how)).count();
        let failed = told.lines().filter(|line| line.ends_with("... FAIL") || line.ends_with("... ERROR")).count();
        ensure!(ends("... ok") >= *wanted && failed == 0, "{module}: {} of {wanted}\n{told}", ends("... ok"));
    }
    Ok(())
}

/// The tests lie compressed among the package's documents; the program to be run.
pub(crate) fn unpack_tests(folder: &Path) -> Result<String> {
    let places = ["/usr/share/doc/rdma-core/tests", "/var/cache/roced-tests/usr/share/doc/rdma-core/tests"];
    let there = places.iter().find(|place| Path::new(place).exists());
    let there = there.with_context(|| format!("no tests of rdma-core in {places:?}: run scripts/setup"))?;
    let copied = Command::new("cp").args(["-r", *there]).arg(folder).status()?;
    let tests = folder.join("tests");
    let compressed = fs::read_dir(&tests)?.filter_map(|file| Some(file.ok()?.path()));
    let compressed: Vec<_> = compressed.filter(|path| path.extension().is_some_and(|end| end == "gz")).collect();
    let unpacked = Command::new("gunzip").args(compressed).status()?;
    ensure!(copied.success() && unpacked.success(), "unpacking the tests of rdma-core");
    Ok(tests.join("run_tests.py").display().to_string())
}

/// A program that uses no RDMA is the same with the library and without: no thread, no file
/// descriptor.
pub(crate) fn a_program_without_rdma_notices_nothing(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let look = "ls /proc/self/fd | wc -l; grep Threads /proc/self/status; grep -c libibverbs /proc/self/maps";
    let (plain, loaded) =
        (lab.run(Host::A, "sh", &["-c", look], SOON)?.output, run(&lab, Host::A, "sh", &["-c", look])?.output);
    let (plain, loaded): (Vec<_>, Vec<_>) = (plain.lines().collect(), loaded.lines().collect());
    ensure!(plain[..2] == loaded[..2], "{plain:?} became {loaded:?}");
    ensure!(plain[2] == "0" && loaded[2] != "0", "the library was not loaded: {loaded:?}");
    Ok(())
}

/// When the daemon dies, programs that wait by polling or by events end with an error, and do not
/// hang.
pub(crate) fn a_dead_daemon_ends_programs(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    for waiting in [&[][..], &["-e"]] {
        let options = [&["-g", GID, "-n", "100000000"], waiting].concat();
        let mut server = start(&lab, Host::B, "ibv_rc_pingpong", &options)?;
        ensure!(within(SOON, || listens(&mut server, PORT))?, "it does not listen");
        let mut client = start(&lab, Host::A, "ibv_rc_pingpong", &[&options[..], &[PEER]].concat())?;
        let moves = || Ok(lab.counter(Host::A, "device/*", "request_packets")? > 100 || !client.runs()?);
        ensure!(within(SOON, moves)?, "nothing moves");
        lab.stop_daemon(Host::A, Signal::SIGKILL)?;
        client.end(SOON)?.failure()?;
        lab.start_daemon(Host::A)?;
        // It retries for a while, then knows that its peer is gone; the example may wait for the
        // other's word.
        drop(server);
    }
    Ok(())
}

/// Compiles a program in C, `source` of the repository, into `folder`.
pub(crate) fn compile(source: &str, folder: &Path) -> Result<String> {
    compile_with(source, folder, &["-libverbs", "-lpthread"])
}

/// A program that opens libraries when it runs.
fn compile_without_libraries(source: &str, folder: &Path) -> Result<String> {
    compile_with(source, folder, &[])
}

pub(crate) fn compile_with(source: &str, folder: &Path, libraries: &[&str]) -> Result<String> {
    let source = repository().join(source);
    let program = folder.join(source.file_stem().context("a file")?).display().to_string();
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Werror", "-o", &program]).arg(source).args(libraries);
    Program::run(compiler, LIMIT)?.success()?;
    Ok(program)
}

/// Huge pages of the machine, some more of them for as long as this lives.
struct HugePages(String);

impl HugePages {
    const FILE: &str = "/proc/sys/vm/nr_hugepages";

    fn more() -> Result<Self> {
        let before = fs::read_to_string(Self::FILE)?;
        // The kernel gives as many as it can.
        fs::write(Self::FILE, (before.trim().parse::<u32>()? + 4).to_string())?;
        Ok(Self(before))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // A setting that cannot be taken back stays the machine's.
        let _ = fs::write(Self::FILE, &self.0);
    }
}

/// Variables with a value, huge pages, and everything where userfaultfd is forbidden, as container
/// runtimes do: no daemon can map them, and all operations move data to and from them.
pub(crate) fn memory_that_cannot_be_mapped(_: &Settings) -> Result<()> {
    let lab = Lab::up(&["--workers", "2", "--queues", "2"])?;
    let folder = tempfile::tempdir()?;
    let program = compile("tests/e2e/proxied.c", folder.path())?;
    let _huge = HugePages::more().inspect_err(|error| println!("without huge pages: {error:#}"));
    for more in [&[][..], &["no-userfaultfd"]] {
        let told = run(&lab, Host::A, &program, &[&["roce0", GID], more].concat())?.success()?;
        for what in ["variable: 300001", "stack: 100000", "heap: 102400"] {
            ensure!(told.contains(what), "{more:?}: {told}");
        }
        if !told.contains("huge pages") {
            println!("skipped in part: the machine has no huge page to give");
        }
    }
    Ok(())
}

/// Eight threads on two queue pairs, one completion queue and one shared receive queue: every byte
/// is looked at, each message arrives once.
pub(crate) fn eight_threads_on_the_same_objects(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&["--workers", "2", "--queues", "2"])?;
    let folder = tempfile::tempdir()?;
    let program = compile("tests/e2e/threads.c", folder.path())?;
    let seconds = if settings.full { "60" } else { "5" };
    run(&lab, Host::A, &program, &["roce0", GID, seconds])?.success().map(drop)
}

/// Threads are canceled in the midst of calls, and keep no other from going on.
pub(crate) fn threads_that_are_canceled_in_calls(settings: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    let folder = tempfile::tempdir()?;
    let program = compile("tests/e2e/canceled.c", folder.path())?;
    let rounds = if settings.full { "2000" } else { "100" };
    run(&lab, Host::A, &program, &["roce0", rounds])?.success().map(drop)
}

/// A user in the group that the config names, without further rights, runs programs; one outside
/// the group sees no device.
pub(crate) fn an_ordinary_user_of_the_group(_: &Settings) -> Result<()> {
    let lab = Lab::up(&[])?;
    for host in [Host::A, Host::B] {
        let config = lab.config(host);
        let text = fs::read_to_string(&config)?;
        fs::write(&config, text.replacen("[control]\n", "[control]\ngroup = \"nogroup\"\n", 1))?;
        lab.stop_daemon(host, Signal::SIGTERM)?;
        lab.start_daemon(host)?;
    }
    // Programs that any user may read: those of the build may lie in a private home folder.
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    let which = lab.run(Host::A, "sh", &["-c", "command -v roce-run"], SOON)?.success()?;
    let built = Path::new(which.trim()).parent().context("a folder")?;
    for name in ["roce-run", "libibverbs.so", "libroce_files.so"] {
        fs::copy(built.join(name), folder.path().join(name)).with_context(|| name.to_owned())?;
    }
    let ours = folder.path().join("roce-run").display().to_string();
    let as_user = |host, group: &str, words: &[&str]| {
        let user = ["--reuid=65534", group, "--clear-groups", "--bounding-set=-all", ours.as_str()];
        lab.start(host, "setpriv", &[&user, words].concat())
    };
    let member = "--regid=nogroup";
    let mut server = as_user(Host::B, member, &["ibv_rc_pingpong", "-g", GID, "-c", "-e"])?;
    ensure!(within(SOON, || listens(&mut server, PORT))?, "it does not listen");
    as_user(Host::A, member, &["ibv_rc_pingpong", "-g", GID, "-c", "-e", PEER])?.end(LIMIT)?.success()?;
    server.end(LIMIT)?.success()?;
    let kept = compile("tests/e2e/proxied.c", folder.path())?;
    as_user(Host::A, member, &[&kept, "roce0", GID])?.end(LIMIT)?.success()?;
    // Files below /dev and /sys are shown to it in a user namespace of its own, where the system
    // has those for all users.
    let namespaces = fs::read_to_string("/proc/sys/user/max_user_namespaces").is_ok_and(|most| most.trim() != "0");
    if namespaces {
        let listed = as_user(Host::A, member, &["--files", "ucx_info", "-d"])?.end(LIMIT)?.success()?;
        ensure!(listed.contains("Transport: rc_verbs"), "{listed}");
        let look = "id -u; ls -l /dev/infiniband/uverbs0; cat /sys/class/infiniband/roce0/node_type; ls /dev/null /sys/class/net/eth0 && \
                    test -c /dev/infiniband/rdma_cm && ! echo 2>/dev/null >/dev/infiniband/rdma_cm && cat /sys/class/misc/rdma_cm/abi_version && \
                    for file in /sys/class/misc/*/uevent; do cat $file >/dev/null || exit 1; done";
        let seen = as_user(Host::A, member, &["--files", "sh", "-c", look])?.end(SOON)?.success()?;
        ensure!(seen.starts_with("65534\nc") && seen.contains("1: CA") && seen.ends_with("4\n"), "{seen}");
    }
    // Else by replaced calls; their folder goes with the program.
    let scratch = folder.path().join("scratch");
    fs::create_dir(&scratch)?;
    fs::set_permissions(&scratch, Permissions::from_mode(0o777))?;
    let scratch_is = format!("TMPDIR={}", scratch.display());
    let user = ["setpriv", "--reuid=65534", member, "--clear-groups", "--bounding-set=-all"];
    // In a user namespace that has no room for another, and without rights there.
    let powerless = "echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all --bounding-set=-all \"$@\"";
    let refused = ["unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c", powerless, "-"];
    let ways = [(&[][..], "--files=interpose"), (&refused, "--files")];
    for (where_it_runs, files) in ways.into_iter().take(if namespaces { 2 } else { 1 }) {
        // Started by a parent that ignores the end of its children.
        let deaf = ["sh", "-c", "trap '' CHLD; exec \"$@\"", "-"];
        let start = |words: &[&str]| {
            let whole = [&user, where_it_runs, &["env", &scratch_is], &deaf, &[&ours, files], words].concat();
            lab.start(Host::A, whole[0], &whole[1..])
        };
        let run = |words: &[&str]| start(words)?.end(LIMIT)?.success();
        let listed = run(&["ucx_info", "-d"])?;
        ensure!(listed.contains("Transport: rc_verbs"), "{files}: {listed}");
        let look = "id -u; test -c /dev/infiniband/uverbs0 && cat /sys/class/infiniband/roce0/node_type; ls /sys/class/infiniband/roce0/device/net \
                    /dev/null; test -c /dev/infiniband/rdma_cm && cat /sys/class/misc/rdma_cm/abi_version; cd /sys/class/infiniband && pwd -P";
        let seen = run(&["sh", "-c", look])?;
        ensure!(seen.starts_with("65534\n1: CA") && seen.contains("eth0") && seen.contains("\n4\n"), "{files}: {seen}");
        let listed = run(&["ls", "-l", "/sys/class/infiniband/roce0"])?;
        ensure!(listed.contains("node_guid"), "{files}: {listed}");
        let ended = start(&["sh", "-c", "exit 7"])?.end(LIMIT)?;
        ensure!(ended.status.code() == Some(7), "{files}: {ended}");
        ensure!(fs::read_dir(&scratch)?.next().is_none(), "{files}: a folder is left behind");
    }
    let refused = as_user(Host::A, "--regid=daemon", &["ibv_devinfo"])?.end(SOON)?;
    ensure!(refused.errors.contains("No IB devices found"), "{refused}");
    Ok(())
}
