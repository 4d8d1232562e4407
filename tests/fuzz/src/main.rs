//! One target under libFuzzer, which owns the command line: `scripts/fuzz` builds and runs this.
//! `ROCED_FUZZ_TARGET` names the target; into the folder `ROCED_FUZZ_SEEDS`, if it is given, the
//! seeds are written first.
#![no_main]

use std::{env, fs, path::Path, sync::OnceLock};

use libfuzzer_sys::fuzz_target;
use roced_fuzz::Target;

fn target() -> &'static Target {
    static TARGET: OnceLock<&'static Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = env::var("ROCED_FUZZ_TARGET").expect("ROCED_FUZZ_TARGET names a target");
        Target::named(&name).unwrap_or_else(|| panic!("no target {name}"))
    })
}

fn write_seeds() {
    let Some(folder) = env::var_os("ROCED_FUZZ_SEEDS") else { return };
    for seed in (target().seeds)() {
        fs::write(Path::new(&folder).join(seed.name), seed.bytes).expect("a folder that can be written");
    }
}

fuzz_target!(init: write_seeds(), |bytes: &[u8]| {
    (target().run)(bytes);
});
