//! A proxy before an object store that breaks requests and answers as a test tells it.
//!
//! Each connection carries one request. The proxy changes no header that is signed.

use std::{
    fmt::Write as _,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// What becomes of a request.
#[derive(Debug, Clone)]
pub enum Break {
    /// It passes.
    Pass,
    /// It is answered with this status, and these lines of headers; it does not reach the store.
    Answer(u16, &'static str, &'static str),
    /// It is a request to delete many objects, and the store denies each of them; it does not reach the store.
    #[allow(dead_code, reason = "only tests of whole commands deny it")]
    DenyEach,
    /// It passes, and this text is put before another in the body of the answer.
    #[allow(dead_code, reason = "only tests of the storage change listings")]
    Insert(&'static str, &'static str),
    /// It is answered with a body that does not end.
    #[allow(dead_code, reason = "only tests of the storage need it")]
    AnswerForEver(u16),
    /// The connection breaks before it reaches the store.
    Reset,
    /// The connection breaks when the store has half of its body.
    ResetWithin,
    /// The store does it, and the connection breaks before the answer.
    LoseAnswer,
    /// One byte of its body is another one.
    ChangeByte,
    /// The answer ends in the middle of its body.
    CutAnswer,
    /// The answer says it is of other bytes.
    ShiftRange,
    /// It waits so long before it passes.
    Wait(Duration),
}

/// A request, as a test may look at it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    /// Path and query.
    pub target: String,
    /// How many requests came before.
    pub number: usize,
}

impl Seen {
    pub fn is(&self, method: &str, part: &str) -> bool {
        self.method == method && self.target.contains(part)
    }
}

type Rule = dyn FnMut(&Seen) -> Break + Send;

/// The proxy, for as long as the process of the tests runs.
pub struct FaultProxy {
    pub endpoint: String,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    upstream: u16,
    rule: Box<Rule>,
    seen: Vec<Seen>,
}

impl FaultProxy {
    pub fn new(upstream: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Mutex::new(Shared {
            upstream,
            rule: Box::new(|_| Break::Pass),
            seen: Vec::new(),
        }));
        let of_thread = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = of_thread.clone();
                // Most errors are the ones that the test wants.
                thread::spawn(move || drop(carry(&client, &shared)));
            }
        });
        Self { endpoint, shared }
    }

    /// From now on; forgets what was seen.
    pub fn rule(&self, rule: impl FnMut(&Seen) -> Break + Send + 'static) {
        let mut shared = self.shared.lock().unwrap();
        shared.rule = Box::new(rule);
        shared.seen.clear();
    }

    /// The first `count` requests of a kind break.
    pub fn break_first(&self, count: usize, method: &'static str, part: &'static str, how: Break) {
        let mut left = count;
        self.rule(move |seen| {
            if left == 0 || !seen.is(method, part) {
                return Break::Pass;
            }
            left -= 1;
            how.clone()
        });
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.lock().unwrap().seen.clone()
    }

    pub fn count(&self, method: &str, part: &str) -> usize {
        self.seen()
            .iter()
            .filter(|seen| seen.is(method, part))
            .count()
    }
}

pub struct Head {
    pub first: String,
    pub lines: Vec<String>,
}

impl Head {
    pub fn read(reader: &mut impl BufRead) -> io::Result<Self> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let line = line.trim_end().to_owned();
            if line.is_empty() {
                break;
            }
            lines.push(line);
        }
        let first = lines.remove(0);
        Ok(Self { first, lines })
    }

    pub fn length(&self) -> usize {
        let value_of = |line: &String| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse().unwrap())
        };
        self.lines.iter().find_map(value_of).unwrap_or(0)
    }

    /// The head again, for a connection that carries nothing else.
    fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{}\r\n", self.first);
        let is_kept = |line: &&String| !line.to_ascii_lowercase().starts_with("connection:");
        self.lines
            .iter()
            .filter(is_kept)
            .for_each(|line| write!(text, "{line}\r\n").unwrap());
        text.push_str("Connection: close\r\n\r\n");
        text.into_bytes()
    }
}

fn carry(mut client: &TcpStream, shared: &Mutex<Shared>) -> io::Result<()> {
    let mut reader = BufReader::new(client);
    let head = Head::read(&mut reader)?;
    let mut body = vec![0; head.length()];
    reader.read_exact(&mut body)?;
    let mut words = head.first.split(' ');
    let (method, target) = (
        words.next().unwrap().to_owned(),
        words.next().unwrap().to_owned(),
    );
    let (how, upstream) = {
        let mut shared = shared.lock().unwrap();
        let seen = Seen {
            method: method.clone(),
            target,
            number: shared.seen.len(),
        };
        shared.seen.push(seen.clone());
        ((shared.rule)(&seen), shared.upstream)
    };
    match how {
        Break::Answer(status, headers, body) => {
            let length = body.len();
            let body = if method == "HEAD" { "" } else { body };
            let text = format!(
                "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}"
            );
            client.write_all(text.as_bytes())?;
            return client.shutdown(Shutdown::Write);
        }
        Break::AnswerForEver(status) => {
            let head =
                format!("HTTP/1.1 {status} X\r\nConnection: close\r\n\r\n<Error><Code>Odd</Code>");
            client.write_all(head.as_bytes())?;
            loop {
                client.write_all(&[b' '; 64 << 10])?; // until the client has had enough
            }
        }
        Break::DenyEach => {
            let answer = denial(&body);
            return write_answer(client, &answer);
        }
        Break::Reset => return Ok(()),
        Break::Wait(time) => thread::sleep(time),
        Break::ChangeByte => {
            let middle = body.len() / 2;
            body[middle] ^= 1;
        }
        _ => {}
    }
    let mut store = TcpStream::connect(("127.0.0.1", upstream))?;
    store.write_all(&head.bytes())?;
    if matches!(how, Break::ResetWithin) {
        return store.write_all(&body[..body.len() / 2]);
    }
    store.write_all(&body)?;
    if let Break::Insert(before, text) = how {
        let mut answer = Vec::new();
        store.read_to_end(&mut answer)?;
        return client.write_all(&inserted(&answer, before, text));
    }
    if matches!(
        how,
        Break::CutAnswer | Break::ShiftRange | Break::LoseAnswer
    ) {
        let mut answer = Vec::new();
        store.read_to_end(&mut answer)?;
        return client.write_all(&changed(&answer, &how));
    }
    io::copy(&mut store, &mut client)?;
    client.shutdown(Shutdown::Write)
}

fn write_answer(mut client: &TcpStream, body: &str) -> io::Result<()> {
    let length = body.len();
    let text = format!(
        "HTTP/1.1 200 X\r\nContent-Type: application/xml\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    client.write_all(text.as_bytes())?;
    client.shutdown(Shutdown::Write)
}

/// S3's answer to a request that deletes many objects, of which it deletes none.
fn denial(asked: &[u8]) -> String {
    let asked = String::from_utf8_lossy(asked);
    let keys = asked.split("<Key>").skip(1);
    let denied = keys.filter_map(|rest| rest.split_once("</Key>"));
    let errors: String = denied
        .map(|(key, _)| {
            format!(
                "<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            )
        })
        .collect();
    format!("<DeleteResult>{errors}</DeleteResult>")
}

/// The answer with a text before another one, and its length corrected.
fn inserted(answer: &[u8], before: &str, text: &str) -> Vec<u8> {
    let answer = String::from_utf8_lossy(answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let body = body.replacen(before, &format!("{text}{before}"), 1);
    let is_kept = |line: &&str| {
        let line = line.to_ascii_lowercase();
        !line.starts_with("content-length:") && !line.starts_with("transfer-encoding:")
    };
    let head: Vec<&str> = head.split("\r\n").filter(is_kept).collect();
    let head = head.join("\r\n");
    format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn changed(answer: &[u8], how: &Break) -> Vec<u8> {
    let end = answer
        .windows(4)
        .position(|bytes| bytes == b"\r\n\r\n")
        .unwrap()
        + 4;
    match how {
        Break::CutAnswer => answer[..end + (answer.len() - end) / 2].to_vec(),
        Break::ShiftRange => {
            let head = String::from_utf8_lossy(&answer[..end]);
            let shift = |line: &str| {
                let Some((name, range)) = line.split_once(": bytes ") else {
                    return line.to_owned();
                };
                let (range, size) = range.split_once('/').unwrap();
                let (first, last) = range.split_once('-').unwrap();
                let [first, last] = [first, last].map(|number| number.parse::<u64>().unwrap() + 1);
                format!("{name}: bytes {first}-{last}/{size}")
            };
            let head = head
                .split("\r\n")
                .map(shift)
                .collect::<Vec<_>>()
                .join("\r\n");
            [head.as_bytes(), &answer[end..]].concat()
        }
        _ => Vec::new(),
    }
}
