//! A request: its line, headers, and the fields of its query or form.
//!
//! `httparse`, the parser of hyper, reads the head. A request with two lengths, two hosts or a transfer coding is refused: two
//! readers could take it for different requests.

use std::{
    io::{self, Read},
    net::IpAddr,
};

/// Bytes of the head of a request.
const HEAD_BYTES: usize = 16 << 10;
/// Headers of a request.
const HEADERS: usize = 64;
/// Bytes of a form.
const FORM_BYTES: usize = 32 << 10;
/// Fields of a query or a form.
const FIELDS: usize = 64;

/// The methods that are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
}

/// A request.
#[derive(Debug)]
pub struct Request {
    pub method: Method,
    /// The path, as it was sent.
    pub path: String,
    /// The fields of the query.
    pub query: Fields,
    /// The fields of the form of a POST.
    pub form: Fields,
    /// The address of the other side, if it is known.
    pub peer: Option<IpAddr>,
    headers: Vec<(String, Vec<u8>)>,
}

/// Why a request is not answered: the status, and the reason for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused(pub u16, pub &'static str);

const MALFORMED: Refused = Refused(400, "the request is malformed");

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// A [`Refused`] for the answer; `Err(None)` if the other side has gone or was too slow.
    pub fn read(from: &mut dyn Read) -> Result<Self, Option<Refused>> {
        let mut buf = Vec::new();
        loop {
            if let Some((mut request, head)) = parse_head(&buf)? {
                request.read_form(buf.split_off(head), from)?;
                return Ok(request);
            }
            if buf.len() >= HEAD_BYTES {
                return Err(Some(Refused(431, "the headers are too large")));
            }
            read_some(from, &mut buf)?;
        }
    }

    fn read_form(&mut self, mut body: Vec<u8>, from: &mut dyn Read) -> Result<(), Option<Refused>> {
        if self.header("transfer-encoding").is_some() {
            return Err(Some(Refused(411, "a form needs a length")));
        }
        let length = self.header("content-length");
        let length = length.map(|text| parse_length(text).ok_or(MALFORMED));
        let length = length.transpose()?.unwrap_or(0);
        if length > FORM_BYTES || body.len() > length {
            return Err(Some(Refused(413, "the form is too large")));
        }
        if self.method != Method::Post {
            return match length {
                0 => Ok(()),
                _ => Err(Some(MALFORMED)),
            };
        }
        while body.len() < length {
            read_some(from, &mut body)?;
        }
        body.truncate(length);
        self.form = Fields::parse(&body).ok_or(MALFORMED)?;
        Ok(())
    }

    /// Returns the value of a header, whose name is in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.and_then(|(_, value)| std::str::from_utf8(value).ok())
    }

    /// Returns the value of a cookie.
    pub fn cookie(&self, name: &str) -> Option<&str> {
        let cookies = self.header("cookie")?.split(';');
        let mut pairs = cookies.filter_map(|pair| pair.trim().split_once('='));
        pairs.find_map(|(other, value)| (other == name).then_some(value))
    }
}

/// Reads what is there, up to the bound of a head.
fn read_some(from: &mut dyn Read, buf: &mut Vec<u8>) -> Result<(), Option<Refused>> {
    let mut piece = [0; 4096];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Err(None),
            Ok(count) => {
                buf.extend_from_slice(&piece[..count]);
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) => {
                return Err(Some(Refused(408, "the request came too slowly")));
            }
            Err(_) => return Err(None),
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Returns the request without its form and the length of its head; `None` if the head is not complete.
fn parse_head(buf: &[u8]) -> Result<Option<(Request, usize)>, Option<Refused>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let length = match parsed.parse(buf) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Some(Refused(431, "there are too many headers")));
        }
        Err(_) => return Err(Some(MALFORMED)),
    };
    let method = match parsed.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        Some("POST") => Method::Post,
        _ => return Err(Some(Refused(405, "the method is not GET, HEAD or POST"))),
    };
    let target = parsed.path.unwrap_or_default();
    // Other forms of targets are for proxies.
    if !target.starts_with('/') {
        return Err(Some(MALFORMED));
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers = parsed.headers.iter();
    let headers: Vec<_> = headers
        .map(|header| (header.name.to_ascii_lowercase(), header.value.to_vec()))
        .collect();
    for single in ["host", "content-length", "origin", "cookie"] {
        if headers.iter().filter(|(name, _)| name == single).count() > 1 {
            return Err(Some(MALFORMED));
        }
    }
    let request = Request {
        method,
        path: path.to_owned(),
        query: Fields::parse(query.as_bytes()).ok_or(MALFORMED)?,
        form: Fields::default(),
        peer: None,
        headers,
    };
    Ok(Some((request, length)))
}

/// Reads a length: digits alone.
fn parse_length(text: &str) -> Option<usize> {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits.then(|| text.parse().unwrap_or(usize::MAX))
}

/// Names and values of a query or a form. Values are any bytes, as paths of a backup are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields(Vec<(String, Vec<u8>)>);

impl Fields {
    /// Reads `a=b&c=%20d`; `None` if it is malformed or has too many fields.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let pairs = text.split(|byte| *byte == b'&');
        let pairs = pairs.filter(|pair| !pair.is_empty());
        let fields: Option<Vec<_>> = pairs.take(FIELDS + 1).map(field).collect();
        let fields = fields?;
        (fields.len() <= FIELDS).then_some(Self(fields))
    }

    /// Returns the bytes of a field.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_slice())
    }

    /// Returns the text of a field; `None` also if it is empty or not UTF-8.
    pub fn text(&self, name: &str) -> Option<&str> {
        let text = std::str::from_utf8(self.bytes(name)?).ok()?;
        (!text.is_empty()).then_some(text)
    }

    /// Returns the number of a field.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}

fn field(pair: &[u8]) -> Option<(String, Vec<u8>)> {
    let mut halves = pair.splitn(2, |byte| *byte == b'=');
    let name = decoded(halves.next()?)?;
    let value = decoded(halves.next().unwrap_or_default())?;
    Some((String::from_utf8(name).ok()?, value))
}

/// Returns the bytes that percent signs and pluses encode.
fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => digit(bytes.next()?)? << 4 | digit(bytes.next()?)?,
            byte => byte,
        });
    }
    Some(out)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// Returns bytes as the value of a query.
pub fn encoded(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(byte) {
            out.push(char::from(*byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Request, Option<Refused>> {
        Request::read(&mut &text[..])
    }

    fn status(text: &[u8]) -> u16 {
        read(text).err().flatten().map_or(0, |refused| refused.0)
    }

    #[test]
    fn a_request_is_read_with_its_query_and_form() {
        let request = read(
            b"POST /a?p=%2e%ff/b&x HTTP/1.1\r\nHost: h\r\nCookie: a=1; b=2\r\n\
              Content-Length: 7\r\n\r\nk=v+%41",
        )
        .unwrap();
        assert_eq!((request.method, &*request.path), (Method::Post, "/a"));
        assert_eq!(request.query.bytes("p"), Some(&b".\xff/b"[..]));
        assert_eq!(request.query.bytes("x"), Some(&b""[..]));
        assert_eq!(request.form.text("k"), Some("v A"));
        assert_eq!(request.cookie("b"), Some("2"));
        assert_eq!(request.cookie("c"), None);
    }

    #[test]
    fn requests_that_two_readers_could_read_differently_are_refused() {
        for (head, code) in [
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            ("GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            ("DELETE / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
            (
                "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
                400,
            ),
            ("POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\na", 400),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nab", 413),
            (
                "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
                413,
            ),
            ("GET / HTTP/1.1\r\nContent-Length: 1\r\n\r\na", 400),
            ("GET /?a=%zz HTTP/1.1\r\n\r\n", 400),
            ("GET /\r\nX: y\r\n\r\n", 400),
        ] {
            assert_eq!(status(head.as_bytes()), code, "{head:?}");
        }
        let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(HEAD_BYTES));
        assert_eq!(status(long.as_bytes()), 431);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(HEADERS + 1));
        assert_eq!(status(many.as_bytes()), 431);
        let fields = format!("GET /?{} HTTP/1.1\r\n\r\n", "a=b&".repeat(FIELDS + 1));
        assert_eq!(status(fields.as_bytes()), 400);
        assert_eq!(read(b"GET / HT").err(), Some(None), "it has gone");
    }

    #[test]
    fn any_bytes_return_from_a_query() {
        let all: Vec<u8> = (0..=255).collect();
        let text = format!("p={}", encoded(&all));
        assert_eq!(
            Fields::parse(text.as_bytes()).unwrap().bytes("p"),
            Some(&all[..])
        );
    }
}
