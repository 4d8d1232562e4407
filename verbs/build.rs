//! Generates from the table `symbols` the linker's version script, and the assembly that gives each
//! function its name and version.
//!
//! `.symver` must stand in one block with a definition, and Rust's own functions are defined
//! elsewhere; so each version of each name is a jump of its own.

use std::{env, fmt::Write as _, fs, path::Path};

/// Private nodes by release of rdma-core: 33 (v33), 34 (v35 to v54), 57 (v57), 59 (v59 to v61),
/// 64 (v64), 65 (v65).
const PRIVATE: &[u32] = &[33, 34, 57, 59, 64, 65];

/// Public nodes, each of which includes those before it.
const PUBLIC: &[&str] = &[
    "1.0", "1.1", "1.5", "1.6", "1.7", "1.8", "1.9", "1.10", "1.11", "1.12", "1.13", "1.14", "1.15", "1.16", "1.17",
    "1.18",
];

/// One line of the table for one node.
struct Symbol {
    node: String,
    name: String,
    /// Path of the function below the crate, or `byte`.
    behind: String,
    /// Version of an import without a version.
    default: bool,
}

fn main() {
    println!("cargo:rerun-if-changed=symbols");
    println!("cargo:rerun-if-changed=build.rs");
    let table = fs::read_to_string("symbols").expect("the table stands beside this file");
    let symbols: Vec<_> =
        table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).flat_map(line).collect();
    let out = env::var("OUT_DIR").expect("cargo sets it");
    let script = Path::new(&out).join("versions");
    fs::write(&script, version_script(&symbols)).expect("OUT_DIR can be written");
    fs::write(Path::new(&out).join("exports.rs"), assembly(&symbols)).expect("OUT_DIR can be written");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
}

fn line(line: &str) -> Vec<Symbol> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [node, name, behind] = words[..] else { panic!("three words are a symbol, not '{line}'") };
    let symbol = |node: String, name: String, default| Symbol { node, name, behind: behind.into(), default };
    if node != "private" {
        assert!(PUBLIC.iter().any(|version| node == format!("IBVERBS_{version}")), "no such node: '{line}'");
        return vec![symbol(node.into(), name.into(), true)];
    }
    let numbered = name.ends_with("_N");
    let name_in = |number: &u32| if numbered { name.replace("_N", &format!("_{number}")) } else { name.into() };
    let of = |number: &u32| symbol(format!("IBVERBS_PRIVATE_{number}"), name_in(number), numbered || *number == 34);
    PRIVATE.iter().map(of).collect()
}

fn version_script(symbols: &[Symbol]) -> String {
    let mut script = String::new();
    let mut node = |name: &str, last: Option<String>| {
        let names = symbols.iter().filter(|symbol| symbol.node == name);
        let globals: String = names.map(|symbol| format!("    {};\n", symbol.name)).collect();
        let globals = if globals.is_empty() { globals } else { format!("  global:\n{globals}") };
        let local = if last.is_none() && name == "IBVERBS_1.0" { "  local: *;\n" } else { "" };
        writeln!(script, "{name} {{\n{globals}{local}}}{};", last.map(|last| format!(" {last}")).unwrap_or_default())
            .expect("a string");
    };
    let mut last = None;
    for version in PUBLIC {
        let name = format!("IBVERBS_{version}");
        node(&name, last);
        last = Some(name);
    }
    for number in PRIVATE {
        node(&format!("IBVERBS_PRIVATE_{number}"), last.clone());
    }
    script
}

/// A `global_asm!` for programs, and the table of names for the tests.
fn assembly(symbols: &[Symbol]) -> String {
    let jump = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "b",
        _ => "jmp",
    };
    let mut lines = String::new();
    let mut operands = String::new();
    let mut functions = Vec::new();
    for (place, symbol) in symbols.iter().enumerate() {
        let Symbol { node, name, behind, default } = symbol;
        let at = if *default { "@@" } else { "@" };
        let version = format!(".globl __roced_{place}; .symver __roced_{place}, {name}{at}{node}");
        if behind == "byte" {
            writeln!(
                lines,
                "\".pushsection .data.__roced_{place},\\\"aw\\\",@progbits; .type __roced_{place}, @object; \
                 .size __roced_{place}, 1; {version}; __roced_{place}: .byte 0; .popsection\","
            )
            .expect("a string");
            continue;
        }
        let function = functions.iter().position(|known| known == behind).unwrap_or_else(|| {
            functions.push(behind.clone());
            writeln!(operands, "f{} = sym crate::{behind},", functions.len() - 1).expect("a string");
            functions.len() - 1
        });
        writeln!(
            lines,
            "\".pushsection .text.__roced_{place},\\\"ax\\\",@progbits; .type __roced_{place}, @function; {version}; \
             __roced_{place}: {jump} {{f{function}}}; .popsection\","
        )
        .expect("a string");
    }
    let names: String = symbols.iter().map(|symbol| format!("(\"{}\", \"{}\"),\n", symbol.node, symbol.name)).collect();
    let addresses: String = functions.iter().map(|path| format!("crate::{path} as *const (),\n")).collect();
    format!(
        "#[cfg(not(test))]\ncore::arch::global_asm!({lines}{operands});\n\
         /// Node and name of each symbol.\n#[cfg(test)]\npub(crate) const NAMES: &[(&str, &str)] = &[{names}];\n\
         /// The functions behind them.\n#[cfg(test)]\npub(crate) fn functions() -> Vec<*const ()> {{\nvec![{addresses}]\n}}\n"
    )
}
