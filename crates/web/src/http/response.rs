//! Answers: a page or a download, with headers that let a browser interpret nothing of a backup.

use super::timed::TimedStream;
use fullbore_format::error::Result;
use std::io::{self, Write};

/// Bytes of a piece of a download; each has to be taken within the time of a piece.
const PIECE_BYTES: usize = 128 << 10;

/// What no page may do: run or draw anything that is not of this server, be framed, or send a form elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// What a picture of a backup may do: nothing.
const PICTURE_POLICY: &str = "default-src 'none'; sandbox; frame-ancestors 'none'";

/// Writes a body that is made while it is sent.
pub type BodyWriter = Box<dyn FnOnce(&mut dyn Write) -> Result<()> + Send>;

/// The body of an answer.
pub enum Body {
    Whole(Vec<u8>),
    /// Made while it is sent; with the length if that is known.
    Made(Option<u64>, BodyWriter),
}

/// An answer.
pub struct Response {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Body,
}

impl Response {
    /// A body of this type.
    pub fn of(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            headers: vec![
                ("Content-Type", kind.to_owned()),
                ("Content-Security-Policy", POLICY.to_owned()),
            ],
            body: Body::Whole(body.into()),
        }
    }

    /// A page.
    pub fn html(page: impl Into<String>) -> Self {
        Self::of("text/html; charset=utf-8", page.into())
    }

    /// An object of JSON.
    pub fn json(value: &impl serde::Serialize) -> Self {
        let body = serde_json::to_vec(value).unwrap_or_default();
        Self::of("application/json", body)
    }

    /// Sends the browser to another page.
    pub fn see(location: String) -> Self {
        let mut response = Self::of("text/plain; charset=utf-8", "");
        response.status = 303;
        response.headers.push(("Location", location));
        response
    }

    /// A file that the browser stores and does not open.
    pub fn download(name: &[u8], length: Option<u64>, write: BodyWriter) -> Self {
        let mut response = Self::of("application/octet-stream", "");
        response
            .headers
            .push(("Content-Disposition", disposition(name)));
        response.body = Body::Made(length, write);
        response
    }

    /// A picture of a backup.
    pub fn picture(kind: &'static str, body: Vec<u8>) -> Self {
        let mut response = Self::of(kind, body);
        response.headers[1].1 = PICTURE_POLICY.to_owned();
        response
    }

    /// With another status.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Returns whether the body is made while it is sent.
    pub fn is_made(&self) -> bool {
        matches!(self.body, Body::Made(..))
    }

    /// Sends the answer. A body that fails midway ends the connection without its end, so that the other side sees
    /// that it is not complete.
    ///
    /// # Errors
    /// The system's; the error of a body, as text.
    pub(crate) fn send(self, out: &mut TimedStream, without_body: bool) -> io::Result<()> {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, phrase(self.status));
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "X-Content-Type-Options: nosniff\r\nReferrer-Policy: same-origin\r\n\
            X-Frame-Options: DENY\r\nCross-Origin-Opener-Policy: same-origin\r\n\
            Cross-Origin-Resource-Policy: same-origin\r\nCache-Control: no-store\r\n\
            Connection: close\r\n";
        head += &match &self.body {
            Body::Whole(body) => format!("Content-Length: {}\r\n\r\n", body.len()),
            Body::Made(Some(length), _) => format!("Content-Length: {length}\r\n\r\n"),
            Body::Made(None, _) => "Transfer-Encoding: chunked\r\n\r\n".to_owned(),
        };
        out.write_piece(head.as_bytes())?;
        match self.body {
            _ if without_body => Ok(()),
            Body::Whole(body) => body
                .chunks(PIECE_BYTES)
                .try_for_each(|piece| out.write_piece(piece)),
            Body::Made(length, write) => send_made(length, write, out),
        }
    }
}

fn send_made(length: Option<u64>, write: BodyWriter, out: &mut TimedStream) -> io::Result<()> {
    let mut pieces = Pieces {
        out,
        buf: Vec::with_capacity(PIECE_BYTES),
        is_chunked: length.is_none(),
    };
    write(&mut pieces).map_err(|error| io::Error::other(error.line()))?;
    pieces.flush()?;
    match pieces.is_chunked {
        true => pieces.out.write_piece(b"0\r\n\r\n"),
        false => Ok(()),
    }
}

/// Sends a body in pieces of one size.
struct Pieces<'a> {
    out: &'a mut TimedStream,
    buf: Vec<u8>,
    is_chunked: bool,
}

impl Write for Pieces<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let room = PIECE_BYTES - self.buf.len();
        let count = room.min(data.len());
        self.buf.extend_from_slice(&data[..count]);
        if self.buf.len() == PIECE_BYTES {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buf.is_empty() {
            return Ok(());
        }
        if self.is_chunked {
            let head = format!("{:x}\r\n", self.buf.len());
            self.out.write_piece(head.as_bytes())?;
            self.buf.extend_from_slice(b"\r\n");
        }
        self.out.write_piece(&self.buf)?;
        self.buf.clear();
        Ok(())
    }
}

/// Returns the header that names a download, as RFC 6266 has it. A browser sees no separator and no control character.
fn disposition(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let plain = |c: char| match c {
        c if c.is_ascii_alphanumeric() || "-._ ()+,=@".contains(c) => c,
        _ => '_',
    };
    let fallback: String = text.chars().map(plain).collect();
    let harmless = |c: char| match c {
        c if c.is_control() || "/\\\u{202e}\u{2066}\u{2067}".contains(c) => '_',
        c => c,
    };
    let whole: String = text.chars().map(harmless).collect();
    let mut escaped = String::new();
    for byte in whole.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
            true => escaped.push(char::from(byte)),
            false => escaped += &format!("%{byte:02X}"),
        }
    }
    format!("attachment; filename=\"{fallback}\"; filename*=UTF-8''{escaped}")
}

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        303 => "See Other",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_download_has_no_character_that_ends_the_header() {
        for name in [
            &b"a\r\nSet-Cookie: x=y\""[..],
            b"..\\..\\x/y",
            b"\xff\xfe\"; filename=evil",
            "x\u{202e}gpj.exe".as_bytes(),
        ] {
            let text = disposition(name);
            let inner = text.strip_prefix("attachment; filename=\"").unwrap();
            let (plain, rest) = inner.split_once("\"; filename*=UTF-8''").unwrap();
            for bad in ['\r', '\n', '"', '\\', '/', ';'] {
                assert!(!plain.contains(bad) && !rest.contains(bad), "{text}");
            }
            assert!(text.is_ascii() && !rest.contains("%E2%80%AE"), "{text}");
        }
        assert_eq!(
            disposition("ä 1".as_bytes()),
            "attachment; filename=\"_ 1\"; filename*=UTF-8''%C3%A4%201"
        );
    }
}
