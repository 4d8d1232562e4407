//! Syntax of faults on the command line: `OPCODE:N:ACTION`, rates, names of opcodes.

use std::str::FromStr;

use anyhow::{Context as _, Error, bail, ensure};
use roced_transport::wire::opcode::{Opcode, OpcodeInfo, Operation, Position};

/// Fault of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    /// It does not arrive.
    Drop = 1,
    /// It arrives twice.
    Duplicate = 2,
    /// It arrives with a byte under the ICRC changed.
    Corrupt = 3,
}

impl FromStr for Action {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(match text {
            "drop" => Self::Drop,
            "duplicate" => Self::Duplicate,
            "corrupt" => Self::Corrupt,
            other => bail!("no action '{other}': drop, duplicate or corrupt"),
        })
    }
}

/// Act once, on the `nth` frame of this opcode from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// BTH opcode.
    pub opcode: Opcode,
    /// From 1.
    pub nth: u64,
    /// The fault.
    pub action: Action,
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let [opcode, nth, action] = text.split(':').collect::<Vec<_>>()[..] else {
            bail!("'{text}' is not OPCODE:N:ACTION, such as rc_write_last:1:drop");
        };
        let nth: u64 = nth.parse().with_context(|| format!("N is a number from 1, not '{nth}'"))?;
        ensure!(nth > 0, "N counts from 1");
        Ok(Self { opcode: parse_opcode(opcode)?, nth, action: action.parse()? })
    }
}

/// A rate as a probability.
pub fn parse_rate(text: &str) -> Result<f64, Error> {
    let rate = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>()? / 100.0,
        None => text.parse::<f64>()?,
    };
    ensure!((0.0..=1.0).contains(&rate), "a rate is 0 to 1, or a percentage such as 1%");
    Ok(rate)
}

/// An opcode by number (`0x11` or `17`), or by name (`rc_ack`).
pub fn parse_opcode(text: &str) -> Result<Opcode, Error> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let named =
        || (0..=u8::MAX).map(Opcode).find(|opcode| opcode.info().is_some_and(|info| name(*opcode, info) == text));
    number.map(Opcode).or_else(named).with_context(|| {
        format!("no opcode '{text}': a number such as 0x11, or a name such as rc_ack, rc_write_middle, rc_read_request")
    })
}

/// `rc_send_last_imm`, `rc_read_response_only`, `rc_ack`: the entry of an opcode in the opcode
/// table, as one word.
fn name(opcode: Opcode, info: &OpcodeInfo) -> String {
    let mut name = format!("{:?}", info.service).to_lowercase();
    for letter in format!("{:?}", info.operation).chars() {
        if letter.is_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    if matches!(info.operation, Operation::Send | Operation::Write | Operation::ReadResponse) {
        name.push_str(match info.position {
            Position::First => "_first",
            Position::Middle => "_middle",
            Position::Last => "_last",
            Position::Only => "_only",
        });
    }
    if info.operation == Operation::Reserved {
        name.push_str(&format!("_{:02x}", opcode.0));
    }
    if info.has_imm {
        name.push_str("_imm");
    }
    if info.has_ieth {
        name.push_str("_invalidate");
    }
    name
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_rule_is_read_by_name_and_by_number() {
        for text in ["rc_write_middle:3:drop", "0x07:3:drop", "7:3:drop"] {
            let rule: Rule = text.parse().expect(text);
            assert_eq!(rule, Rule { opcode: Opcode(7), nth: 3, action: Action::Drop }, "{text}");
        }
        let named =
            [("rc_send_last_imm", 3), ("rc_read_request", 0x0c), ("rc_read_response_only", 0x10), ("rc_ack", 0x11)];
        for (name, code) in named {
            assert_eq!(parse_opcode(name).expect(name), Opcode(code));
        }
    }

    #[test]
    fn every_opcode_has_a_name_of_its_own() {
        let known: Vec<_> = (0..=u8::MAX).filter_map(|code| Some(name(Opcode(code), Opcode(code).info()?))).collect();
        assert_eq!(known.len(), known.iter().collect::<HashSet<_>>().len(), "{known:?}");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "rc_ack",
            "rc_ack:1",
            "rc_ack:0:drop",
            "rc_ack:-1:drop",
            "rc_nack:1:drop",
            "0x100:1:drop",
            "rc_ack:1:eat",
            "rc_ack:1:drop:2",
        ] {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
        for text in ["", "-0.1", "1.1", "101%", "NaN", "x"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_shares_or_percentages() {
        for (text, rate) in [("0.01", 0.01), ("1%", 0.01), ("0", 0.0), ("1", 1.0), ("100%", 1.0)] {
            assert!((parse_rate(text).expect(text) - rate).abs() < 1e-12, "{text}");
        }
    }
}
