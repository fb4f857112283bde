//! Which files of a tree are left out: the same rules for a backup, for a copy, and on their way to another host.

use crate::patterns::{PatternPlace, Patterns};
use fullbore_format::error::Result;
use minicbor::{Decode, Encode};
use std::{ffi::OsString, os::unix::ffi::OsStrExt};

/// Rules for leaving out parts of a tree, as a user gives them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct FileRules {
    /// Patterns as in `.gitignore`.
    #[cbor(n(0), with = "os_words")]
    pub exclude: Vec<OsString>,
    /// Files with such patterns; those of `exclude` come after them.
    #[cbor(n(1), with = "os_words")]
    pub exclude_from: Vec<OsString>,
    /// Whether to leave out the contents of directories with a valid `CACHEDIR.TAG`.
    #[n(2)]
    pub exclude_caches: bool,
    /// Names that leave out the contents of the directory that holds them.
    #[cbor(n(3), with = "os_words")]
    pub exclude_if_present: Vec<OsString>,
    /// Whether to stay on the file systems of the roots.
    #[n(4)]
    pub one_file_system: bool,
}

impl FileRules {
    /// Returns whether a rule may leave out a file of the file systems of the roots.
    pub fn may_leave_out(&self) -> bool {
        !self.exclude.is_empty() || !self.exclude_from.is_empty() || self.has_marks()
    }

    /// Returns whether a name in a directory may leave out its contents.
    pub fn has_marks(&self) -> bool {
        self.exclude_caches || !self.exclude_if_present.is_empty()
    }

    /// Reads the patterns. Those that begin with a name of a place hold below that place.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](fullbore_format::error::ErrorKind::Usage) for a file that cannot be read; those of a pattern.
    pub fn patterns(&self, places: &[PatternPlace]) -> Result<Patterns> {
        let lines: Vec<&[u8]> = self.exclude.iter().map(|line| line.as_bytes()).collect();
        Patterns::read(&lines, &self.exclude_from, places)
    }
}

/// Names of the system as strings of bytes.
mod os_words {
    use minicbor::{Decode, Decoder, Encode, Encoder, bytes::ByteVec, encode::Write};
    use std::{
        ffi::OsString,
        os::unix::ffi::{OsStrExt, OsStringExt},
    };

    pub(super) fn encode<C, W: Write>(
        words: &[OsString],
        encoder: &mut Encoder<W>,
        context: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        let words: Vec<ByteVec> = words
            .iter()
            .map(|word| word.as_bytes().to_vec().into())
            .collect();
        words.encode(encoder, context)
    }

    pub(super) fn decode<'b, C>(
        decoder: &mut Decoder<'b>,
        context: &mut C,
    ) -> Result<Vec<OsString>, minicbor::decode::Error> {
        let words = Vec::<ByteVec>::decode(decoder, context)?;
        let words = words.into_iter();
        Ok(words.map(|word| OsString::from_vec(word.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn rules_are_the_same_on_another_host() {
        let rules = FileRules {
            exclude: vec!["*.tmp".into(), OsString::from_vec(vec![b'/', 0xff])],
            exclude_from: vec!["/etc/out".into()],
            exclude_caches: true,
            exclude_if_present: vec![".nobackup".into()],
            one_file_system: true,
        };
        let mut sent = Vec::new();
        minicbor::encode(&rules, &mut sent).unwrap();
        assert_eq!(minicbor::decode::<FileRules>(&sent).unwrap(), rules);
        assert!(rules.may_leave_out() && !FileRules::default().may_leave_out());
        assert!(minicbor::decode::<FileRules>(&sent[..sent.len() - 1]).is_err());
    }
}
