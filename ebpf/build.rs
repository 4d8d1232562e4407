//! Compiles `src/roced_xdp.bpf.c` with clang into an object in `OUT_DIR`; [`roced_ebpf`] carries
//! its bytes.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "src/roced_xdp.bpf.c";
const HEADER: &str = "src/steer.h";

fn main() -> ExitCode {
    for file in [SOURCE, HEADER, "build.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rerun-if-env-changed=CLANG");
    match compile() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // Each line by itself: Cargo shows only the text behind the `cargo::error=` of that
            // line.
            for line in why.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn compile() -> Result<(), String> {
    let clang = env::var_os("CLANG").map_or_else(|| PathBuf::from("clang"), PathBuf::from);
    check_clang(&clang)?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set: run this by Cargo")?);
    SkeletonBuilder::new()
        .source(SOURCE)
        .obj(out.join("roced_xdp.bpf.o"))
        .clang(&clang)
        .clang_args(["-Wall".into(), "-Wextra".into()].into_iter().chain(kernel_headers()))
        .build()
        .map_err(|error| format!("the XDP program does not compile: {error:#}"))
}

/// Names the package to install instead of "No such file or directory".
fn check_clang(clang: &Path) -> Result<(), String> {
    let status = Command::new(clang).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{} --version` failed ({status})", clang.display())),
        Err(error) => Err(format!(
            "cannot run `{}` ({error}): it compiles the XDP program.\n\
             Install it (Debian: apt install clang; scripts/setup does), or name another one in the variable CLANG.",
            clang.display()
        )),
    }
}

/// Debian keeps `asm/types.h`, which `linux/bpf.h` includes, where clang looks only when it
/// compiles for the host.
fn kernel_headers() -> Option<String> {
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").ok()?.as_str() {
        "x86" => "i386".to_owned(),
        "powerpc64" => "powerpc64le".to_owned(),
        arch => arch.to_owned(),
    };
    let path = format!("/usr/include/{arch}-linux-gnu");
    Path::new(&path).is_dir().then(|| format!("-I{path}"))
}
