//! The README shows the first program as it is; the page of examples names all of them.

#[test]
fn the_readme_shows_the_first_program() {
    let (_, program) = include_str!("../examples/first.rs").split_once("\n\n").expect("a comment, then the program");
    assert!(include_str!("../../README.md").contains(&format!("```rust\n{program}```\n")), "README.md differs");
}

#[test]
fn the_page_of_examples_names_every_program() -> std::io::Result<()> {
    let page = include_str!("../examples/README.md");
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(program) = name.strip_suffix(".rs") else { continue };
        assert!(page.contains(&format!("| [`{program}`]({name}) |")), "client/examples/README.md lacks {program}");
    }
    Ok(())
}
