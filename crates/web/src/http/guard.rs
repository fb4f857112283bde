//! Who may ask: hosts and origins of requests, tokens, sessions.
//!
//! - The `Host` of a request must be an address or a name of this server. So a name of another site that leads here shows nothing
//!   (DNS rebinding).
//! - A request with the `Origin` of another site is refused, and so is a request that the browser marks as one of another site.
//! - The token is part of the fragment of the address, which browsers send to nobody. The page of entry sends it in a form. It is
//!   used once, then there is another one. The session is a cookie that scripts cannot read and other sites cannot use.
//! - Cookies do not tell ports apart. So all pages of a server at loopback are below a random directory, to which the cookie is
//!   bound: another server of this machine does not get it.

use super::{
    passwords::PasswordFile,
    request::{Method, Refused, Request},
};
use aws_lc_rs::{constant_time::verify_slices_are_equal, rand};
use fullbore_format::{
    digest::hex,
    error::{Error, ErrorKind, Result},
};
use fullbore_platform::queue::Locked;
use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Mutex,
    time::{Duration, Instant},
};

/// Sessions at the same time; a new one ends the oldest.
const MAX_SESSIONS: usize = 256;
/// A session ends this long after its last request.
const SESSION_TIME: Duration = Duration::from_secs(8 * 3600);
/// Wrong passwords of an address within [`WRONG_TIME`], after which its tries are not read. A token cannot be guessed.
const MAX_WRONG: u32 = 10;
const WRONG_TIME: Duration = Duration::from_secs(60);

/// How a browser gets a session.
#[derive(Debug)]
pub enum Entry {
    /// By the token that the program printed.
    Token,
    /// By a name and a password.
    Passwords(PasswordFile),
    /// By the certificate of its connection: there is no session.
    Certificate,
}

/// Decides about requests.
#[derive(Debug)]
pub struct Guard {
    entry: Entry,
    /// `HOST:PORT` of this server, in small letters.
    hosts: Vec<String>,
    is_encrypted: bool,
    /// The directory of all pages: `/`, or a random one.
    base: String,
    token: Mutex<String>,
    sessions: Mutex<Vec<Session>>,
    /// Wrong passwords by address. It is held during a try: each takes 64 MiB.
    wrong: Mutex<HashMap<Option<IpAddr>, WrongTries>>,
}

#[derive(Debug)]
struct Session {
    /// The digest of its cookie: the memory of this process shows no cookie.
    digest: blake3::Hash,
    used: Instant,
}

#[derive(Debug)]
struct WrongTries {
    count: u32,
    since: Instant,
}

impl Guard {
    /// Answers requests to `address` and to `names`.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if there are no random numbers.
    pub fn new(
        entry: Entry,
        address: SocketAddr,
        names: &[String],
        is_encrypted: bool,
    ) -> Result<Self> {
        let port = address.port();
        let mut hosts: Vec<_> = names.iter().map(|name| host_of(name, port)).collect();
        if !address.ip().is_unspecified() {
            hosts.push(address.to_string());
        }
        let base = match entry {
            Entry::Token => format!("/{}/", &random()?[..16]),
            _ => "/".to_owned(),
        };
        // The usual port is not in the Host of a browser.
        let usual = hosts.iter().filter_map(|host| host.strip_suffix(":443"));
        let usual: Vec<_> = usual.map(str::to_owned).collect();
        if is_encrypted {
            hosts.extend(usual);
        }
        Ok(Self {
            entry,
            hosts,
            is_encrypted,
            base,
            token: Mutex::new(random()?),
            sessions: Mutex::default(),
            wrong: Mutex::default(),
        })
    }

    /// The way in.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// The directory of all pages, with slashes at its ends.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Returns the address for a browser, with the token if there is one.
    pub fn address(&self) -> String {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        let host = self.hosts.first().map_or("", String::as_str);
        let fragment = match self.entry {
            Entry::Token => format!("enter#{}", self.token.locked()),
            _ => String::new(),
        };
        format!("{scheme}://{host}{}{fragment}", self.base)
    }

    /// Refuses what another site may have sent.
    ///
    /// # Errors
    /// The answer.
    pub fn check_site(&self, request: &Request) -> Result<(), Refused> {
        let host = request.header("host").unwrap_or_default();
        let host = host.to_ascii_lowercase();
        if !self.hosts.contains(&host) {
            return Err(Refused(421, "this server has another name"));
        }
        let origin = request.header("origin").map(str::to_ascii_lowercase);
        let scheme = if self.is_encrypted { "https" } else { "http" };
        if origin.is_some_and(|origin| origin != format!("{scheme}://{host}")) {
            return Err(Refused(403, "the request is of another site"));
        }
        let site = request.header("sec-fetch-site");
        let is_own = matches!(site, None | Some("same-origin" | "none"));
        // A link of another site may lead here, but only to the page of entry: the cookie does not come with it.
        let is_link = request.method == Method::Get
            && request.header("sec-fetch-mode") == Some("navigate")
            && request.header("sec-fetch-dest") == Some("document");
        match is_own || is_link {
            true => Ok(()),
            false => Err(Refused(403, "the request is of another site")),
        }
    }

    /// Returns whether the request has a session.
    pub fn is_known(&self, request: &Request) -> bool {
        if matches!(self.entry, Entry::Certificate) {
            return true;
        }
        let Some(cookie) = request.cookie(self.cookie_name()) else {
            return false;
        };
        let digest = blake3::hash(cookie.as_bytes());
        let mut sessions = self.sessions.locked();
        sessions.retain(|session| session.used.elapsed() < SESSION_TIME);
        let found = sessions.iter_mut().find(|session| session.digest == digest);
        found.is_some_and(|session| {
            session.used = Instant::now();
            true
        })
    }

    /// Takes the form of the page of entry. Returns the header of the new session's cookie.
    ///
    /// # Errors
    /// The answer to a wrong token or password, or to too many.
    pub fn enter(&self, request: &Request) -> Result<String, Refused> {
        let is_right = match &self.entry {
            Entry::Token => self.takes_token(request.form.text("token").unwrap_or_default()),
            Entry::Passwords(file) => self.takes_password(file, request)?,
            Entry::Certificate => false,
        };
        if !is_right {
            return Err(Refused(401, "the token or the password is wrong"));
        }
        let no_session = |_| Refused(503, "there is no random number");
        let cookie = random().map_err(no_session)?;
        let mut sessions = self.sessions.locked();
        if sessions.len() >= MAX_SESSIONS {
            let oldest = sessions.iter().enumerate();
            let oldest = oldest.min_by_key(|(_, session)| session.used);
            let oldest = oldest.map(|(index, _)| index);
            oldest.map(|index| sessions.swap_remove(index));
        }
        sessions.push(Session {
            digest: blake3::hash(cookie.as_bytes()),
            used: Instant::now(),
        });
        let secure = if self.is_encrypted { "; Secure" } else { "" };
        let name = self.cookie_name();
        let base = &self.base;
        Ok(format!(
            "{name}={cookie}; Path={base}; HttpOnly; SameSite=Strict{secure}"
        ))
    }

    /// Ends the session of a request.
    pub fn leave(&self, request: &Request) {
        if let Some(cookie) = request.cookie(self.cookie_name()) {
            let digest = blake3::hash(cookie.as_bytes());
            self.sessions
                .locked()
                .retain(|session| session.digest != digest);
        }
    }

    fn cookie_name(&self) -> &'static str {
        // Browsers take a cookie of the first name over TLS from this host alone.
        match self.is_encrypted && self.base == "/" {
            true => "__Host-fullbore",
            false => "fullbore",
        }
    }

    /// Tries a password, unless its address had too many wrong ones.
    fn takes_password(&self, file: &PasswordFile, request: &Request) -> Result<bool, Refused> {
        let mut wrong = self.wrong.locked();
        wrong.retain(|_, tries| tries.since.elapsed() < WRONG_TIME);
        let count = wrong.get(&request.peer).map_or(0, |tries| tries.count);
        if count >= MAX_WRONG {
            return Err(Refused(
                429,
                "there were too many wrong tries; wait a minute",
            ));
        }
        let field = |name| request.form.text(name).unwrap_or_default();
        let is_right = file
            .has(field("name"), field("password"))
            .map_err(|_| Refused(503, "the password file cannot be read"))?;
        if !is_right {
            let tries = wrong.entry(request.peer).or_insert_with(|| WrongTries {
                count: 0,
                since: Instant::now(),
            });
            tries.count += 1;
        }
        Ok(is_right)
    }

    /// Uses up the token, if it is right.
    fn takes_token(&self, text: &str) -> bool {
        let mut token = self.token.locked();
        if verify_slices_are_equal(text.as_bytes(), token.as_bytes()).is_err() {
            return false;
        }
        match random() {
            Ok(next) => {
                *token = next;
                true
            }
            Err(_) => false,
        }
    }
}

fn host_of(name: &str, port: u16) -> String {
    let name = name.to_ascii_lowercase();
    match name.contains(':') && !name.ends_with(']') {
        true => name,
        false => format!("{name}:{port}"),
    }
}

/// Returns 256 random bits, in hexadecimal.
fn random() -> Result<String> {
    let mut bytes = [0; 32];
    rand::fill(&mut bytes)
        .map_err(|_| Error::new(ErrorKind::System, "could not make a random number"))?;
    Ok(hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        let address = "127.0.0.1:8".parse().unwrap();
        Guard::new(Entry::Token, address, &["localhost".to_owned()], false).unwrap()
    }

    fn request(text: &str) -> Request {
        let whole = text.replace('\n', "\r\n") + "\r\n\r\n";
        Request::read(&mut whole.as_bytes()).unwrap()
    }

    fn entry(token: &str) -> Request {
        let form = format!("token={token}");
        let head = format!(
            "POST /enter HTTP/1.1\r\nHost: 127.0.0.1:8\r\nContent-Length: {}\r\n\r\n{form}",
            form.len()
        );
        Request::read(&mut head.as_bytes()).unwrap()
    }

    #[test]
    fn names_and_origins_of_other_sites_are_refused() {
        let guard = guard();
        let code = |text: &str| guard.check_site(&request(text)).err().map_or(0, |r| r.0);
        for (headers, wanted) in [
            ("Host: 127.0.0.1:8", 0),
            ("Host: LOCALHOST:8", 0),
            ("Host: evil.example:8", 421),
            ("Host: 127.0.0.1", 421),
            ("Host: 127.0.0.1:9", 421),
            ("X: y", 421),
            ("Host: 127.0.0.1:8\nOrigin: http://127.0.0.1:8", 0),
            ("Host: 127.0.0.1:8\nOrigin: https://127.0.0.1:8", 403),
            ("Host: 127.0.0.1:8\nOrigin: http://localhost:8", 403),
            ("Host: 127.0.0.1:8\nOrigin: null", 403),
            ("Host: 127.0.0.1:8\nOrigin: http://evil.example", 403),
            ("Host: 127.0.0.1:8\nSec-Fetch-Site: cross-site", 403),
            ("Host: 127.0.0.1:8\nSec-Fetch-Site: same-site", 403),
            (
                "Host: 127.0.0.1:8\nSec-Fetch-Site: cross-site\nSec-Fetch-Mode: navigate\nSec-Fetch-Dest: document",
                0,
            ),
            (
                "Host: 127.0.0.1:8\nSec-Fetch-Site: cross-site\nSec-Fetch-Mode: navigate\nSec-Fetch-Dest: iframe",
                403,
            ),
        ] {
            let text = format!("GET / HTTP/1.1\n{headers}");
            assert_eq!(code(&text), wanted, "{headers}");
        }
    }

    #[test]
    fn a_token_is_used_once() {
        let guard = guard();
        let token = guard.token.locked().clone();
        assert!(guard.address().ends_with(&format!("enter#{token}")));
        let cookie = guard.enter(&entry(&token)).unwrap();
        assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
        let cookie = cookie.split(';').next().unwrap();
        let with = |cookie: &str| {
            request(&format!(
                "GET / HTTP/1.1\nHost: 127.0.0.1:8\nCookie: {cookie}"
            ))
        };
        assert!(guard.is_known(&with(cookie)));
        assert!(!guard.is_known(&with("fullbore=00")));
        assert_eq!(guard.enter(&entry(&token)).unwrap_err().0, 401, "again");
        guard.leave(&with(cookie));
        assert!(!guard.is_known(&with(cookie)));
    }

    #[test]
    fn a_new_session_ends_the_oldest_of_too_many() {
        let guard = guard();
        for _ in 0..=MAX_SESSIONS {
            let token = guard.token.locked().clone();
            guard.enter(&entry(&token)).unwrap();
        }
        assert_eq!(guard.sessions.locked().len(), MAX_SESSIONS);
    }
}
