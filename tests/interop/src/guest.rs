//! The guest: a kernel of Debian's in QEMU, without KVM, with Linux's rdma_rxe on a port of the
//! lab's switch, and a few agents that run the commands that they receive over virtio-serial.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use crate::process::{Ended, Running};

/// Its MAC address, by which its frames are known.
pub(crate) const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x10, 0x00, 0x03];
/// Its addresses, on host a's networks.
pub(crate) const IPV4: &str = "10.10.0.3";
pub(crate) const IPV6: &str = "fd00:10::3";
/// Commands that it runs at a time.
const AGENTS: usize = 3;
/// Without KVM on a busy machine.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// In addition to the time of a command: to start it and to bring the answer.
const GRACE: Duration = Duration::from_secs(15);
/// Work of a NIC that is no part of a wire.
const NO_OFFLOADS: &str = "csum=off,guest_csum=off,gso=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,\
                           host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off";

/// A guest that runs. It ends when this is dropped.
pub(crate) struct Guest {
    qemu: Running,
    agents: Mutex<Vec<BufReader<UnixStream>>>,
}

impl Guest {
    /// Boots the image in `image` on the tap interface `tap` of network namespace `space`. Sockets,
    /// console and log lie in `folder`.
    pub(crate) fn boot(image: &Path, space: &str, tap: &str, mtu: u32, folder: &Path) -> Result<Self> {
        let console = folder.join("console");
        // That of a guest before this one says that it is ready.
        let _ = fs::remove_file(&console);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", space, "qemu-system-x86_64"]);
        command.args("-accel tcg,thread=multi,tb-size=256 -cpu max -smp 2 -m 512 -M q35".split(' '));
        command.args("-bios /usr/share/qemu/qboot.rom -nodefaults -no-user-config -display none -no-reboot".split(' '));
        command.arg("-kernel").arg(image.join("vmlinux")).arg("-initrd").arg(image.join("initrd"));
        command.arg("-append").arg(format!(
            "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=reliable random.trust_cpu=on mtu={mtu} ipv4={IPV4}/24 ipv6={IPV6}/64 \
             agents={AGENTS}"
        ));
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command.args(["-object", "rng-random,id=random,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=random"]);
        let mac = MAC.map(|byte| format!("{byte:02x}")).join(":");
        command.arg("-netdev").arg(format!("tap,id=net,ifname={tap},script=no,downscript=no,vhost=off"));
        command.arg("-device").arg(format!("virtio-net-pci,netdev=net,mac={mac},host_mtu={mtu},{NO_OFFLOADS}"));
        command.args(["-device", "virtio-serial-pci,id=serial"]);
        let sockets: Vec<PathBuf> = (1..=AGENTS).map(|agent| folder.join(format!("agent.{agent}"))).collect();
        for (socket, agent) in sockets.iter().zip(1..) {
            let _ = fs::remove_file(socket);
            command.arg("-chardev").arg(format!("socket,id=c{agent},path={},server=on,wait=off", socket.display()));
            command.arg("-device").arg(format!("virtserialport,bus=serial.0,chardev=c{agent},nr={agent}"));
        }
        let mut qemu = Running::start(command, &folder.join("qemu.log"))?;

        let deadline = Instant::now() + BOOT_LIMIT;
        while !fs::read(&console).is_ok_and(|text| String::from_utf8_lossy(&text).contains("guest: rxe0 is up")) {
            ensure!(qemu.runs()?, "QEMU ended: {}", qemu.printed()?);
            ensure!(
                Instant::now() < deadline,
                "the guest does not boot within {} s: {}",
                BOOT_LIMIT.as_secs(),
                String::from_utf8_lossy(&fs::read(&console).unwrap_or_default())
            );
            thread::sleep(Duration::from_millis(50));
        }
        let connect = |socket: &PathBuf| anyhow::Ok(BufReader::new(UnixStream::connect(socket)?));
        let agents = sockets.iter().map(connect).collect::<Result<_>>().context("an agent's socket")?;
        Ok(Self { qemu, agents: Mutex::new(agents) })
    }

    /// Runs a line of shell. Several threads may, as many as there are agents.
    pub(crate) fn run(&self, command: &str, limit: Duration) -> Result<Ended> {
        let mut agent =
            self.agents.lock().expect("no panic").pop().context("all agents of the guest are busy, or lost")?;
        // One that does not answer is not asked again.
        let ended = ask(&mut agent, command, limit).with_context(|| format!("guest: {command}"))?;
        self.agents.lock().expect("no panic").push(agent);
        Ok(ended)
    }

    /// Whether every agent answers.
    pub(crate) fn is_well(&mut self) -> bool {
        self.agents.lock().expect("no panic").len() == AGENTS && self.qemu.runs().unwrap_or(false)
    }
}

fn ask(agent: &mut BufReader<UnixStream>, command: &str, limit: Duration) -> Result<Ended> {
    agent.get_ref().set_read_timeout(Some(limit + GRACE))?;
    ensure!(!command.contains('\n'), "one line");
    writeln!(agent.get_mut(), "{} {command}", limit.as_secs().max(1))?;
    let mut line = String::new();
    agent.read_line(&mut line).context("no answer")?;
    let (code, bytes) = line.trim().split_once(' ').with_context(|| format!("answers '{line}'"))?;
    let mut output = vec![0; bytes.parse()?];
    agent.read_exact(&mut output)?;
    Ok(Ended::now(code.parse()?, String::from_utf8_lossy(&output).into_owned()))
}
