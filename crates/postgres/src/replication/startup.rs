//! The beginning of a replication session: its parameters, and the proof of the password.

use super::{
    link::Link,
    message::{Fields, Message, Messages, unexpected},
    refusal::refusal,
};
use crate::{
    conninfo::{Binding, Host, Params},
    session::connect::ssl_modes,
    tls,
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform as platform;
use postgres_protocol::authentication::{
    md5_hash,
    sasl::{ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256},
};

/// The version of the protocol: 3.0.
const PROTOCOL: i32 = 3 << 16;
/// Messages before a session is ready, at most: a server sends some 20 of parameters.
const MAX_MESSAGES: usize = 200;

/// A session that is ready, and what the server said of itself.
pub(super) struct StartedSession {
    pub(super) messages: Messages,
    /// Major version of the server.
    pub(super) major: u32,
}

/// Connects to a host with the encryption that `sslmode` asks for, and logs in.
///
/// # Errors
/// As [`super::ReplicationClient::connect`].
pub(super) fn start(params: &Params, host: &Host) -> Result<StartedSession> {
    let mut first = None;
    for mode in ssl_modes(params, host) {
        let started = Link::open(params, host, *mode).and_then(|link| {
            let mut messages = Messages::new(link);
            messages.write(None, &parameters(params))?;
            let mut login = Login {
                params,
                host,
                is_bound: false,
                scram: None,
                major: 0,
            };
            login.run(&mut messages)?;
            Ok(StartedSession {
                messages,
                major: login.major,
            })
        });
        match started {
            Ok(session) => return Ok(session),
            // An entry of pg_hba.conf may be only for encrypted or only for plain connections.
            Err(error) if error.kind == ErrorKind::Permission => {
                first = first.or(Some(error));
            }
            Err(error) => return Err(first.unwrap_or(error)),
        }
    }
    Err(first.unwrap_or_else(|| Error::new(ErrorKind::Bug, "there is no way to connect")))
}

/// The first message of a session, behind its length.
fn parameters(params: &Params) -> Vec<u8> {
    let mut bytes = PROTOCOL.to_be_bytes().to_vec();
    add_parameter("user", &params.user, &mut bytes);
    add_parameter("replication", "true", &mut bytes);
    add_parameter("application_name", &params.application_name, &mut bytes);
    add_parameter("client_encoding", "UTF8", &mut bytes);
    if let Some(options) = &params.options {
        add_parameter("options", options, &mut bytes);
    }
    bytes.push(0);
    bytes
}

fn add_parameter(name: &str, value: &str, bytes: &mut Vec<u8>) {
    for text in [name, value] {
        bytes.extend(text.bytes().filter(|byte| *byte != 0));
        bytes.push(0);
    }
}

/// The steps until the server is ready.
struct Login<'a> {
    params: &'a Params,
    host: &'a Host,
    /// Whether the password is bound to the encrypted connection.
    is_bound: bool,
    scram: Option<ScramSha256>,
    major: u32,
}

impl Login<'_> {
    fn run(&mut self, messages: &mut Messages) -> Result<()> {
        for _ in 0..MAX_MESSAGES {
            let message = messages
                .next()?
                .ok_or_else(|| Error::new(ErrorKind::Unreachable, "the server does not answer"))?;
            let Message { kind, body } = message;
            match kind {
                b'R' => self.authenticate(messages, Fields(&body))?,
                b'E' => return Err(refusal("the server refused the connection", &body)),
                b'S' => self.note_parameter(Fields(&body))?,
                b'N' | b'K' | b'v' => {}
                b'Z' => return Ok(()),
                kind => return Err(unexpected(&format!("a message of kind {kind}"))),
            }
        }
        Err(unexpected("too many messages before it was ready"))
    }

    fn note_parameter(&mut self, mut fields: Fields<'_>) -> Result<()> {
        let name = fields.text()?;
        let value = String::from_utf8_lossy(fields.text()?);
        if name == b"server_version" {
            let end = value.find(|c: char| !c.is_ascii_digit());
            let major = &value[..end.unwrap_or(value.len())];
            self.major = major.parse().unwrap_or_default();
            platform::debug(|| format!("replication from PostgreSQL {value}"));
        }
        Ok(())
    }

    fn authenticate(&mut self, messages: &mut Messages, mut fields: Fields<'_>) -> Result<()> {
        match fields.i32()? {
            0 => self.check_binding(),
            // Before a password leaves in clear or as MD5: where binding is required, both are
            // refused.
            3 => {
                self.refuse_unbound()?;
                let password = self.password()?.to_vec();
                send_text(messages, &password)
            }
            5 => {
                self.refuse_unbound()?;
                let salt = fields.bytes(4)?;
                let salt = [salt[0], salt[1], salt[2], salt[3]];
                let hash = md5_hash(self.params.user.as_bytes(), self.password()?, salt);
                send_text(messages, hash.as_bytes())
            }
            10 => self.begin_scram(messages, fields),
            11 => {
                let scram = self.scram.as_mut().ok_or_else(out_of_order)?;
                scram.update(fields.0).map_err(not_proven)?;
                messages.write(Some(b'p'), scram.message())
            }
            12 => {
                let scram = self.scram.as_mut().ok_or_else(out_of_order)?;
                scram.finish(fields.0).map_err(not_proven)
            }
            method => {
                let message = format!("cannot log in with authentication method {method}");
                Err(Error::new(ErrorKind::Unsupported, message)
                    .hint("use scram-sha-256, a certificate, or peer on a socket"))
            }
        }
    }

    fn begin_scram(&mut self, messages: &mut Messages, mut fields: Fields<'_>) -> Result<()> {
        let mut has_plain = false;
        let mut has_plus = false;
        while !fields.0.is_empty() {
            let name = fields.text()?;
            has_plain |= name == SCRAM_SHA_256.as_bytes();
            has_plus |= name == SCRAM_SHA_256_PLUS.as_bytes();
        }
        let wanted = self.params.tls.channel_binding;
        let hash = match wanted {
            Binding::Disable => None,
            _ => messages
                .link()
                .server_certificate()
                .and_then(tls::certificate_hash),
        };
        // `unrequested` tells the server that we could have bound: it refuses if an attacker has
        // hidden its offer.
        let (name, binding) = match hash {
            Some(hash) if has_plus => {
                self.is_bound = true;
                (
                    SCRAM_SHA_256_PLUS,
                    ChannelBinding::tls_server_end_point(hash),
                )
            }
            Some(_) => (SCRAM_SHA_256, ChannelBinding::unrequested()),
            None => (SCRAM_SHA_256, ChannelBinding::unsupported()),
        };
        if !self.is_bound {
            self.refuse_unbound()?;
            if !has_plain {
                return Err(unexpected("no known method of SASL"));
            }
        }
        let scram = ScramSha256::new(self.password()?, binding);
        let first = scram.message();
        let mut body = name.as_bytes().to_vec();
        body.push(0);
        let length = i32::try_from(first.len()).unwrap_or(i32::MAX);
        body.extend(length.to_be_bytes());
        body.extend(first);
        messages.write(Some(b'p'), &body)?;
        self.scram = Some(scram);
        Ok(())
    }

    fn password(&self) -> Result<&[u8]> {
        let password = self.host.password.as_ref();
        password
            .map(|password| password.text.as_bytes())
            .ok_or_else(|| {
                let message = format!("the server at {} asks for a password", self.host);
                Error::new(ErrorKind::Permission, message)
                    .hint("set one with PGPASSWORD, ~/.pgpass or the service file")
            })
    }

    /// As libpq: no proof of a password without the binding that was asked for.
    fn refuse_unbound(&self) -> Result<()> {
        if self.params.tls.channel_binding != Binding::Require {
            return Ok(());
        }
        let message = "the server does not bind the password to the connection";
        Err(Error::new(ErrorKind::Permission, message)
            .because("channel_binding=require asks for it"))
    }

    fn check_binding(&self) -> Result<()> {
        match self.is_bound {
            true => Ok(()),
            false => self.refuse_unbound(),
        }
    }
}

fn send_text(messages: &mut Messages, text: &[u8]) -> Result<()> {
    let mut body = text.to_vec();
    body.push(0);
    messages.write(Some(b'p'), &body)
}

fn out_of_order() -> Error {
    unexpected("an answer to a question that was not asked")
}

fn not_proven(error: std::io::Error) -> Error {
    Error::new(
        ErrorKind::Permission,
        "the server and this program disagree about the password",
    )
    .because(error)
}
