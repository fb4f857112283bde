//! A client of `fullbore web`, which asks over its sockets.

use crate::runs::command;
use serde_json::Value;
use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// A server of a test, which ends with it.
pub struct WebServer {
    pub child: Child,
    /// `HOST:PORT`.
    pub host: String,
    /// The directory of all pages.
    pub base: String,
    pub token: String,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// In small letters.
    pub head: String,
    pub body: Vec<u8>,
    /// Whether the body came to its end.
    pub is_whole: bool,
}

impl Answer {
    #[track_caller]
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}\n{}", self.head, self.text());
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&bytes[..end]).replace("\r\n", "\n");
        let mut answer = Self {
            status: head.split(' ').nth(1)?.parse().ok()?,
            // Names alone: a value such as a cookie keeps its case.
            head: head
                .lines()
                .map(|line| match line.split_once(": ") {
                    Some((name, value)) => format!("{}: {value}\n", name.to_ascii_lowercase()),
                    None => format!("{line}\n"),
                })
                .collect(),
            body: bytes[end + 4..].to_vec(),
            is_whole: true,
        };
        let length = answer.header("content-length").map(str::to_owned);
        match length {
            Some(length) => answer.is_whole = answer.body.len().to_string() == length,
            None => answer.unchunk(),
        }
        Some(answer)
    }

    pub fn unchunk(&mut self) {
        let mut plain = Vec::new();
        let mut rest = &self.body[..];
        self.is_whole = loop {
            let Some(line) = rest.windows(2).position(|two| two == b"\r\n") else {
                break false;
            };
            let count = std::str::from_utf8(&rest[..line]).unwrap();
            let count = usize::from_str_radix(count, 16).unwrap();
            rest = &rest[line + 2..];
            if rest.len() < count + 2 {
                break false;
            }
            plain.extend_from_slice(&rest[..count]);
            rest = &rest[count + 2..];
            if count == 0 {
                break rest.is_empty();
            }
        };
        self.body = plain;
    }
}

impl WebServer {
    pub fn start(words: impl IntoIterator<Item = OsString>) -> Self {
        Self::start_in(words, &[])
    }

    pub fn start_in(
        words: impl IntoIterator<Item = OsString>,
        variables: &[(&str, &Path)],
    ) -> Self {
        let mut all = args!["web", "--no-browser", "-q"].to_vec();
        all.extend(words);
        let mut command = command(all);
        command.envs(variables.iter().copied());
        Self::of_command(command)
    }

    pub fn of_command(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let out = child.stdout.as_mut().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let address = line.trim().split_once("://").expect(&line).1;
        let (host, path) = address.split_once('/').unwrap();
        let (base, token) = path.split_once("enter#").unwrap_or((path, ""));
        Self {
            child,
            host: host.to_owned(),
            base: format!("/{base}"),
            token: token.to_owned(),
        }
    }

    pub fn of(repository: &Path) -> Self {
        Self::start(args![repository])
    }

    /// Of a repository that is named as below its directory.
    pub fn within(dir: &Path, repository: &str) -> Self {
        let mut command = command(args!["web", "--no-browser", "-q", repository]);
        command.current_dir(dir);
        Self::of_command(command)
    }

    /// The address that a person opens first.
    pub fn address(&self) -> String {
        format!("http://{}{}enter#{}", self.host, self.base, self.token)
    }

    pub fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(&self.host).unwrap();
        let most = Some(Duration::from_secs(100));
        socket.set_read_timeout(most).unwrap();
        socket
    }

    /// Sends bytes, and reads until the server ends the connection.
    pub fn raw(&self, request: &[u8]) -> Option<Answer> {
        let mut socket = self.connect();
        // The server may answer before it has read all.
        let _ = socket.write_all(request);
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        Answer::parse(&answer)
    }

    pub fn ask(&self, method: &str, page: &str, headers: &str, form: &str) -> Answer {
        let (host, base) = (&self.host, &self.base);
        let length = form.len();
        let head = format!("{method} {base}{page} HTTP/1.1\r\nHost: {host}\r\n");
        let request = format!("{head}{headers}Content-Length: {length}\r\n\r\n{form}");
        self.raw(request.as_bytes()).expect("an answer")
    }

    /// Uses the token, and returns the header of a session.
    pub fn session(&self) -> String {
        let answer = self.ask("POST", "enter", "", &format!("token={}", self.token));
        let answer = answer.is(303);
        assert_eq!(answer.header("location"), Some(&*self.base));
        let cookie = answer.header("set-cookie").unwrap();
        format!("Cookie: {}\r\n", cookie.split(';').next().unwrap())
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server with a session.
pub struct Session {
    pub server: WebServer,
    pub cookie: String,
}

impl Session {
    pub fn of(repository: &Path) -> Self {
        Self::start(args![repository])
    }

    pub fn start(words: impl IntoIterator<Item = OsString>) -> Self {
        Self::start_in(words, &[])
    }

    pub fn start_in(
        words: impl IntoIterator<Item = OsString>,
        variables: &[(&str, &Path)],
    ) -> Self {
        let server = WebServer::start_in(words, variables);
        let cookie = server.session();
        Self { server, cookie }
    }

    pub fn get(&self, page: &str) -> Answer {
        self.server.ask("GET", page, &self.cookie, "")
    }

    #[track_caller]
    pub fn api(&self, page: &str) -> Value {
        self.get(&format!("api/{page}")).is(200).json()
    }

    /// The id of the newest backup of the first source, and the key of that source.
    pub fn newest(&self) -> (String, String) {
        let fleet = self.api("fleet");
        let source = &fleet["sources"][0];
        let text = |key: &str| source[key].as_str().unwrap().to_owned();
        (text("newest_id"), text("s"))
    }
}

/// Returns bytes as a value of a query.
pub fn encoded(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02x}")).collect()
}
