//! Attributes of netlink messages: built for requests, found in replies.

use netlink_packet_core::{DefaultNla, Emitable as _, NlasIterator};

/// Flag of an attribute that consists of attributes (`NLA_F_NESTED`).
const NESTED: u16 = 1 << 15;

/// Length and kind, before the value.
const HEADER_BYTES: usize = 4;

/// Attributes as bytes, one behind the other, each padded to four bytes. Those of a reply are as
/// they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NetlinkAttributes(Vec<u8>);

impl NetlinkAttributes {
    /// Attributes of a reply, or the value of a nested one.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// These and one more.
    pub(super) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let attribute = DefaultNla::new(kind, value.to_vec());
        let start = self.0.len();
        self.0.resize(start + attribute.buffer_len(), 0);
        attribute.emit(&mut self.0[start..]);
        self
    }

    /// These and one more, which consists of `inner`.
    pub(super) fn with_nested(self, kind: u16, inner: &Self) -> Self {
        self.with(kind | NESTED, &inner.0)
    }

    /// Kind and value of each, without the flags of the kind. Unreadable bytes end them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let attributes = NlasIterator::new(self.0.as_slice()).map_while(Result::ok);
        attributes.map(|attribute| {
            let (kind, bytes) = (attribute.kind(), attribute.value_length());
            // The iterator has checked that the value is there.
            (kind, attribute.into_inner().get(HEADER_BYTES..).and_then(|value| value.get(..bytes)).unwrap_or_default())
        })
    }

    /// The value of the first attribute of that kind.
    pub(super) fn find(&self, kind: u16) -> Option<&[u8]> {
        self.iter().find(|(of, _)| *of == kind).map(|(_, value)| value)
    }

    /// The attributes in the first one of that kind.
    pub(super) fn nested(&self, kind: u16) -> Option<Self> {
        self.find(kind).map(Self::from_bytes)
    }

    /// Their bytes.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_others_and_not_beyond_the_end() {
        let whole = NetlinkAttributes::default().with(7, b"abc").with(2 | NESTED, &5u32.to_ne_bytes());
        assert_eq!(whole.as_bytes().len(), 16, "the first is padded");
        assert_eq!(whole.find(2), Some(&5u32.to_ne_bytes()[..]), "the upper bits of a kind are flags");
        assert_eq!((whole.find(7), whole.find(9)), (Some(&b"abc"[..]), None));
        for cut in 0..whole.as_bytes().len() {
            assert_eq!(NetlinkAttributes::from_bytes(&whole.as_bytes()[..cut]).find(2), None, "{cut}");
        }
        let short = NetlinkAttributes::from_bytes(&[0; 16]);
        assert_eq!(short.find(0), None, "an attribute shorter than its header ends them");
    }

    #[test]
    fn nested_attributes_are_read_as_they_were_written() {
        let inner = NetlinkAttributes::default().with(1, &[5]).with(1, &[6]);
        let whole = NetlinkAttributes::default().with(3, &[]).with_nested(4, &inner);
        assert_eq!(whole.nested(4).map(|inner| inner.iter().count()), Some(2));
        assert_eq!(whole.nested(4), Some(inner));
        assert_eq!(whole.nested(5), None);
    }
}
