//! The name in the certificate of a host, read from its DER. The certificate was checked before, but nothing here relies on that.

/// A certificate is known by this name: the common name of its subject, or else its first DNS name. `None` if it has neither.
pub fn certificate_name(der: &[u8]) -> Option<String> {
    let mut certificate = Der(der).inside(SEQUENCE)?;
    let mut fields = certificate.inside(SEQUENCE)?;
    fields.skip_if(VERSION)?;
    for tag in [INTEGER, SEQUENCE, SEQUENCE, SEQUENCE] {
        fields.inside(tag)?; // serial number, algorithm, issuer, validity
    }
    let subject = fields.inside(SEQUENCE)?;
    common_name(subject).or_else(|| first_dns_name(fields))
}

const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OBJECT: u8 = 0x06;
const BOOLEAN: u8 = 0x01;
const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const IA5: u8 = 0x16;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const DNS_NAME: u8 = 0x82;

/// `commonName`, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 4, 3];

/// `subjectAltName`, 2.5.29.17.
const ALTERNATIVE_NAME: &[u8] = &[0x55, 29, 17];

/// Values that follow each other.
#[derive(Clone, Copy)]
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The tag and the content of the next value.
    fn next(&mut self) -> Option<(u8, Der<'a>)> {
        let (tag, rest) = self.0.split_first()?;
        let (first, rest) = rest.split_first()?;
        let (bytes, rest) = match first {
            short @ ..=0x7f => (usize::from(*short), rest),
            long @ 0x81..=0x83 => {
                let (number, rest) = rest.split_at_checked(usize::from(long & 3))?;
                let number = number
                    .iter()
                    .fold(0, |all, byte| all << 8 | usize::from(*byte));
                (number, rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(bytes)?;
        self.0 = rest;
        Some((*tag, Der(content)))
    }

    /// The content of the next value, which has this tag.
    fn inside(&mut self, tag: u8) -> Option<Der<'a>> {
        let (found, content) = self.next()?;
        (found == tag).then_some(content)
    }

    /// Steps over the next value if it has this tag.
    fn skip_if(&mut self, tag: u8) -> Option<()> {
        if self.0.first() == Some(&tag) {
            self.next()?;
        }
        Some(())
    }
}

/// The last common name of a subject, which is the most specific one.
fn common_name(mut subject: Der<'_>) -> Option<String> {
    let mut name = None;
    while let Some(mut set) = subject.inside(SET) {
        while let Some(mut pair) = set.inside(SEQUENCE) {
            let is_name = pair.inside(OBJECT)?.0 == COMMON_NAME;
            if let (true, (UTF8 | PRINTABLE | IA5, text)) = (is_name, pair.next()?) {
                name = text_of(text);
            }
        }
    }
    name
}

/// The first DNS name among the extensions, which are the last of the fields.
fn first_dns_name(mut fields: Der<'_>) -> Option<String> {
    let mut extensions = loop {
        match fields.next()? {
            (EXTENSIONS, mut list) => break list.inside(SEQUENCE)?,
            _ => continue,
        }
    };
    while let Some(mut extension) = extensions.inside(SEQUENCE) {
        let kind = extension.inside(OBJECT)?;
        extension.skip_if(BOOLEAN)?;
        let mut value = extension.inside(OCTETS)?;
        if kind.0 != ALTERNATIVE_NAME {
            continue;
        }
        let mut names = value.inside(SEQUENCE)?;
        while let Some((tag, name)) = names.next() {
            if tag == DNS_NAME {
                return text_of(name);
            }
        }
    }
    None
}

fn text_of(der: Der<'_>) -> Option<String> {
    let text = std::str::from_utf8(der.0).ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    use std::process::Command;

    /// A certificate of openssl with this subject and these alternative names.
    fn certificate(subject: &str, names: &str) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout /dev/null -days 1 -utf8";
        let mut command = Command::new("openssl");
        command.args(new.split(' ')).args(["-subj", subject]);
        if !names.is_empty() {
            command.args(["-addext", &format!("subjectAltName={names}")]);
        }
        let output = command.current_dir(&dir).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        CertificateDer::from_pem_slice(&output.stdout)
            .unwrap()
            .to_vec()
    }

    #[test]
    fn a_certificate_is_known_by_its_common_name_or_else_by_its_first_dns_name() {
        for (subject, names, expected) in [
            ("/CN=web1", "", Some("web1")),
            (
                "/O=backups/CN=web1.example",
                "DNS:other",
                Some("web1.example"),
            ),
            ("/O=backups", "IP:127.0.0.1,DNS:web2,DNS:web3", Some("web2")),
            ("/O=backups", "IP:127.0.0.1", None),
            ("/CN=wéb", "", Some("wéb")),
        ] {
            let found = certificate_name(&certificate(subject, names));
            assert_eq!(found.as_deref(), expected, "{subject} {names}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_and_any_changed_certificate_have_a_name_or_none(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = certificate_name(&bytes);
            let mut nested = vec![0x30, 0x81, 0xff, 0x30, 0x81, 0xf0];
            nested.extend(&bytes);
            let _ = certificate_name(&nested);
        }
    }
}
