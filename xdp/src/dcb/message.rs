//! Messages of dcbnl (`linux/dcbnl.h`) as bytes and as types. Numbers are in the order of the
//! host, as everywhere in netlink.
//!
//! ```text
//! request  dcbmsg{0, command, 0, 0}  IFNAME "eth0\0"  IEEE { ETS | PFC | APP_TABLE { APP … } | … }
//! reply    dcbmsg{0, command, 0, 0}  IFNAME "eth0\0"  IEEE { ETS PFC APP_TABLE … }  DCBX u8
//!          to IEEE_SET and IEEE_DEL: IEEE u8, 0 or the low byte of -errno; an error also has its
//!          NLMSG_ERROR
//! ```

use std::convert::Infallible;

use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use nix::errno::Errno;
use thiserror::Error;

use super::settings::{DcbSettings, DcbxFlags, DscpPriority, EtsSettings, PfcSettings, PrioritySet, TrustedField};
use crate::attributes::NetlinkAttributes;

/// Message types of `linux/rtnetlink.h`.
const RTM_GETDCB: u16 = 78;
const RTM_SETDCB: u16 = 79;

/// Commands.
const IEEE_SET: u8 = 20;
const IEEE_GET: u8 = 21;
const IEEE_DEL: u8 = 27;

/// Attributes of a message.
const IFNAME: u16 = 1;
const IEEE: u16 = 13;
const DCBX: u16 = 14;

/// Attributes in `IEEE`.
const ETS: u16 = 1;
const PFC: u16 = 2;
const APP_TABLE: u16 = 3;
const APP_TRUST_TABLE: u16 = 11;

/// Kinds of entries of both tables: selectors of the standard, and Linux's own (PCP).
const IEEE_APP: u16 = 1;
const DCB_APP: u16 = 2;

/// `struct dcbmsg`.
const HEADER_BYTES: usize = 4;

/// `struct ieee_ets`: `willing`, `ets_cap`, `cbs`, and seven arrays of eight bytes, of which
/// `prio_tc` is the fourth.
const ETS_BYTES: usize = 59;
const ETS_CLASS_OF: usize = 3 + 3 * 8;

/// `struct ieee_pfc`: `pfc_cap`, `pfc_en`, `mbc`, a byte of padding, `delay` at 4, padding, eight
/// counters at 8 and eight at 72.
const PFC_BYTES: usize = 136;
const PFC_DELAY: usize = 4;

/// `struct dcb_app`: `selector`, `priority`, and `protocol` at 2.
const APP_BYTES: usize = 4;

/// A reply that is not as `linux/dcbnl.h` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DcbDecodeError {
    /// There is no reply to the question.
    #[error("the kernel gave no answer about DCB")]
    NoReply,
    /// It has no settings.
    #[error("the kernel's answer has no settings of DCB")]
    NoSettings,
    /// An attribute is shorter than its structure.
    #[error("the kernel's answer has {bytes} bytes of {structure}: at least {least} belong there")]
    Truncated {
        /// The structure.
        structure: &'static str,
        /// Bytes that are there.
        bytes: usize,
        /// Bytes of the structure.
        least: usize,
    },
}

/// A request or a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DcbMessage {
    kind: u16,
    command: u8,
    attributes: NetlinkAttributes,
}

impl DcbMessage {
    fn new(kind: u16, command: u8, interface: &str) -> Self {
        let name = [interface.as_bytes(), &[0]].concat();
        Self { kind, command, attributes: NetlinkAttributes::default().with(IFNAME, &name) }
    }

    fn with_ieee(self, inner: &NetlinkAttributes) -> Self {
        Self { attributes: self.attributes.with_nested(IEEE, inner), ..self }
    }

    /// Asks for all settings.
    pub(super) fn get(interface: &str) -> Self {
        Self::new(RTM_GETDCB, IEEE_GET, interface)
    }

    /// Sets priority flow control.
    pub(super) fn set_pfc(interface: &str, pfc: &PfcSettings) -> Self {
        let mut bytes = [0; PFC_BYTES];
        bytes[..3].copy_from_slice(&[pfc.capability, pfc.enabled.bits(), pfc.macsec_bypass]);
        bytes[PFC_DELAY..PFC_DELAY + 2].copy_from_slice(&pfc.delay.to_ne_bytes());
        let pfc = NetlinkAttributes::default().with(PFC, &bytes);
        Self::new(RTM_SETDCB, IEEE_SET, interface).with_ieee(&pfc)
    }

    /// Adds priorities of DSCPs.
    pub(super) fn add_dscp_priorities(interface: &str, entries: &[DscpPriority]) -> Self {
        Self::new(RTM_SETDCB, IEEE_SET, interface).with_ieee(&app_table(entries))
    }

    /// Removes priorities of DSCPs.
    pub(super) fn remove_dscp_priorities(interface: &str, entries: &[DscpPriority]) -> Self {
        Self::new(RTM_SETDCB, IEEE_DEL, interface).with_ieee(&app_table(entries))
    }

    /// Sets the fields that a priority is taken from.
    pub(super) fn set_trust(interface: &str, fields: &[TrustedField]) -> Self {
        let entry =
            |table: NetlinkAttributes, field: &TrustedField| table.with(entry_kind(*field), &[field.selector()]);
        let table = fields.iter().fold(NetlinkAttributes::default(), entry);
        let table = NetlinkAttributes::default().with_nested(APP_TRUST_TABLE, &table);
        Self::new(RTM_SETDCB, IEEE_SET, interface).with_ieee(&table)
    }

    /// Settings of a reply to [`DcbMessage::get`]. Attributes that are not known are left out.
    ///
    /// # Errors
    /// It is no such reply, or an attribute of it is too short.
    pub(super) fn settings(&self) -> Result<DcbSettings, DcbDecodeError> {
        let ieee = self.attributes.nested(IEEE).filter(|_| self.command == IEEE_GET);
        let ieee = ieee.ok_or(DcbDecodeError::NoSettings)?;
        let trusted = |table: NetlinkAttributes| {
            let selectors = table.iter().filter_map(|(_, value)| value.first().copied());
            selectors.map(TrustedField::from_selector).collect()
        };
        Ok(DcbSettings {
            dcbx: self.attributes.find(DCBX).and_then(|value| value.first().copied()).map(DcbxFlags),
            ets: ieee.find(ETS).map(decode_ets).transpose()?,
            pfc: ieee.find(PFC).map(decode_pfc).transpose()?,
            dscp_priorities: decode_app_table(&ieee.nested(APP_TABLE).unwrap_or_default())?,
            trust: ieee.nested(APP_TRUST_TABLE).map(trusted),
        })
    }

    /// The result in a reply to a change.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn result(&self) -> Result<(), Errno> {
        let is_change = matches!(self.command, IEEE_SET | IEEE_DEL);
        let result = self.attributes.find(IEEE).filter(|_| is_change).and_then(|value| value.first().copied());
        match result.unwrap_or(0) {
            0 => Ok(()),
            // The kernel puts -errno into one byte: those up to 128 can be told.
            code => Err(Errno::from_raw(i32::from(code.cast_signed()).abs())),
        }
    }
}

const fn entry_kind(field: TrustedField) -> u16 {
    match field {
        TrustedField::Pcp => DCB_APP,
        TrustedField::Dscp | TrustedField::Other(_) => IEEE_APP,
    }
}

fn app_table(entries: &[DscpPriority]) -> NetlinkAttributes {
    let entry = |table: NetlinkAttributes, entry: &DscpPriority| {
        let [low, high] = u16::from(entry.dscp).to_ne_bytes();
        table.with(IEEE_APP, &[TrustedField::Dscp.selector(), entry.priority, low, high])
    };
    let table = entries.iter().fold(NetlinkAttributes::default(), entry);
    NetlinkAttributes::default().with_nested(APP_TABLE, &table)
}

/// The first bytes of a value, which has to have them all. A later kernel may have more.
fn structure<const BYTES: usize>(value: &[u8], name: &'static str) -> Result<[u8; BYTES], DcbDecodeError> {
    let error = DcbDecodeError::Truncated { structure: name, bytes: value.len(), least: BYTES };
    value.first_chunk().copied().ok_or(error)
}

fn decode_ets(value: &[u8]) -> Result<EtsSettings, DcbDecodeError> {
    let bytes: [u8; ETS_BYTES] = structure(value, "ieee_ets")?;
    let mut class_of = [0; 8];
    class_of.copy_from_slice(&bytes[ETS_CLASS_OF..ETS_CLASS_OF + 8]);
    Ok(EtsSettings { willing: bytes[0] != 0, class_of })
}

fn decode_pfc(value: &[u8]) -> Result<PfcSettings, DcbDecodeError> {
    let bytes: [u8; PFC_BYTES] = structure(value, "ieee_pfc")?;
    let [capability, enabled, macsec_bypass, _padding, low, high, ..] = bytes;
    let delay = u16::from_ne_bytes([low, high]);
    Ok(PfcSettings { capability, enabled: PrioritySet::from_bits(enabled), macsec_bypass, delay })
}

/// Entries of DSCPs; others, and those with numbers out of range, say nothing of a DSCP.
fn decode_app_table(table: &NetlinkAttributes) -> Result<Vec<DscpPriority>, DcbDecodeError> {
    let mut entries = Vec::new();
    for (kind, value) in table.iter() {
        if kind != IEEE_APP {
            continue;
        }
        let [selector, priority, low, high] = structure::<APP_BYTES>(value, "dcb_app")?;
        let dscp = u8::try_from(u16::from_ne_bytes([low, high])).ok();
        let dscp = dscp.filter(|_| selector == TrustedField::Dscp.selector());
        entries.extend(dscp.and_then(|dscp| DscpPriority::new(dscp, priority)));
    }
    entries.sort_unstable();
    entries.dedup();
    Ok(entries)
}

impl NetlinkSerializable for DcbMessage {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        HEADER_BYTES + self.attributes.as_bytes().len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..HEADER_BYTES].copy_from_slice(&[0, self.command, 0, 0]);
        buffer[HEADER_BYTES..].copy_from_slice(self.attributes.as_bytes());
    }
}

impl NetlinkDeserializable for DcbMessage {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        let command = payload.get(1).copied().unwrap_or_default();
        let attributes = NetlinkAttributes::from_bytes(payload.get(HEADER_BYTES..).unwrap_or_default());
        Ok(Self { kind: header.message_type, command, attributes })
    }
}
