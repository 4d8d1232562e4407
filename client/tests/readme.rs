//! The README shows the first program as it is.

#[test]
fn the_readme_shows_the_first_program() {
    let (_, program) = include_str!("../examples/first.rs").split_once("\n\n").expect("a comment, then the program");
    assert!(include_str!("../../README.md").contains(&format!("```rust\n{program}```\n")), "README.md differs");
}
