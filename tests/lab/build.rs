//! Compiles the BPF programs of `src` with clang into objects in `OUT_DIR`.

use std::{
    env,
    path::{Path, PathBuf},
};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    for file in ["src/faults.bpf.c", "src/faults.h", "src/queue.bpf.c", "src/queue.h", "build.rs"] {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rerun-if-env-changed=CLANG");
    for name in ["faults", "queue"] {
        compile(name);
    }
}

fn compile(name: &str) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR"));
    // cpu v3 has the atomic addition that tells the old value, by which exactly one frame is the
    // N-th.
    let arguments = ["-Wall", "-Wextra", "-mcpu=v3"].map(String::from).into_iter().chain(kernel_headers());
    let built = SkeletonBuilder::new()
        .source(format!("src/{name}.bpf.c"))
        .obj(out.join(format!("{name}.bpf.o")))
        .clang(env::var_os("CLANG").map_or_else(|| PathBuf::from("clang"), PathBuf::from))
        .clang_args(arguments)
        .build();
    if let Err(error) = built {
        for line in
            format!("the switch's BPF program {name} does not compile (scripts/setup installs clang): {error:#}")
                .lines()
        {
            println!("cargo::error={line}");
        }
    }
}

/// Debian keeps `asm/types.h`, which `linux/bpf.h` includes, where clang looks only when it
/// compiles for the host.
fn kernel_headers() -> Option<String> {
    let path = format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH").ok()?);
    Path::new(&path).is_dir().then(|| format!("-I{path}"))
}
