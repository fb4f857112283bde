//! The part of Google's XML interface that fullbore uses, in memory, after its documentation.
//!
//! No server that can be installed has it: fake-gcs-server refuses uploads of that interface. One bucket, no credentials.

use crate::fault_proxy::Head;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// Objects of one page of a list: few, so that tests have several pages.
const PAGE: usize = 7;

#[derive(Default)]
struct Bucket {
    objects: BTreeMap<String, Stored>,
    uploads: BTreeMap<String, Begun>,
    last_number: u64,
}

struct Stored {
    bytes: Vec<u8>,
    generation: u64,
    metadata: Vec<String>,
}

#[derive(Default)]
struct Begun {
    key: String,
    parts: BTreeMap<u32, Vec<u8>>,
    metadata: Vec<String>,
}

struct Request {
    method: String,
    key: String,
    query: BTreeMap<String, String>,
    head: Head,
    body: Vec<u8>,
}

struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
}

impl Answer {
    fn new(status: u16) -> Self {
        Self {
            status,
            headers: String::new(),
            body: Vec::new(),
        }
    }

    fn header(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        write!(self.headers, "{name}: {value}\r\n").unwrap();
        self
    }

    fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }
}

/// Starts the fake, and returns its port.
pub fn start() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let bucket = Arc::new(Mutex::new(Bucket::default()));
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let bucket = bucket.clone();
            thread::spawn(move || drop(serve(&client, &bucket)));
        }
    });
    port
}

fn serve(mut client: &TcpStream, bucket: &Mutex<Bucket>) -> io::Result<()> {
    let mut reader = BufReader::new(client);
    loop {
        let head = Head::read(&mut reader)?;
        let mut body = vec![0; head.length()];
        reader.read_exact(&mut body)?;
        let request = parsed(head, body);
        let answer = bucket.lock().unwrap().answer(&request);
        let length = answer.body.len();
        let head = format!(
            "HTTP/1.1 {} X\r\nContent-Length: {length}\r\n{}\r\n",
            answer.status, answer.headers
        );
        client.write_all(head.as_bytes())?;
        if request.method != "HEAD" {
            client.write_all(&answer.body)?;
        }
    }
}

fn parsed(head: Head, body: Vec<u8>) -> Request {
    let mut words = head.first.split(' ');
    let (method, target) = (words.next().unwrap().to_owned(), words.next().unwrap());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let key = path
        .trim_start_matches('/')
        .split_once('/')
        .map_or("", |(_, key)| key);
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let query = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    Request {
        method,
        key: decoded(key),
        query: query
            .map(|(name, value)| (decoded(name), decoded(&value.replace('+', " "))))
            .collect(),
        head,
        body,
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first == b'%' {
            bytes.push(u8::from_str_radix(std::str::from_utf8(&after[..2]).unwrap(), 16).unwrap());
            rest = &after[2..];
        } else {
            bytes.push(first);
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

impl Request {
    fn header(&self, wanted: &str) -> Option<&str> {
        let value_start = |line: &'_ String| {
            let (name, _) = line.split_once(':')?;
            name.eq_ignore_ascii_case(wanted).then_some(name.len() + 1)
        };
        self.head
            .lines
            .iter()
            .find_map(|line| value_start(line).map(|index| line[index..].trim()))
    }

    fn metadata(&self) -> Vec<String> {
        let is_metadata = |line: &&String| line.to_ascii_lowercase().starts_with("x-goog-meta-");
        self.head
            .lines
            .iter()
            .filter(is_metadata)
            .cloned()
            .collect()
    }
}

impl Bucket {
    fn answer(&mut self, request: &Request) -> Answer {
        let has = |name: &str| request.query.contains_key(name);
        match request.method.as_str() {
            "GET" if request.key.is_empty() && has("uploads") => self.list_uploads(request),
            "GET" if request.key.is_empty() => self.list(request),
            "GET" | "HEAD" => self.get(request),
            "PUT" if has("uploadId") => self.put_part(request),
            "PUT" => self.put(request),
            "POST" if has("uploads") => self.begin(request),
            "POST" => self.complete(request),
            "DELETE" if has("uploadId") => {
                let found = self.uploads.remove(&request.query["uploadId"]);
                Answer::new(if found.is_some() { 204 } else { 404 })
            }
            "DELETE" => Answer::new(if self.objects.remove(&request.key).is_some() {
                204
            } else {
                404
            }),
            _ => Answer::new(405),
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn store(&mut self, key: &str, bytes: Vec<u8>, metadata: Vec<String>) -> u64 {
        let generation = self.next_number();
        let stored = Stored {
            bytes,
            generation,
            metadata,
        };
        self.objects.insert(key.to_owned(), stored);
        generation
    }

    fn put(&mut self, request: &Request) -> Answer {
        let there = self
            .objects
            .get(&request.key)
            .map_or(0, |object| object.generation);
        let wanted = request
            .header("x-goog-if-generation-match")
            .map(|text| text.parse::<u64>().unwrap());
        if wanted.is_some_and(|wanted| wanted != there) {
            return Answer::new(412).body("<Error><Code>PreconditionFailed</Code></Error>");
        }
        let generation = self.store(&request.key, request.body.clone(), request.metadata());
        Answer::new(200)
            .header("ETag", format!("\"{generation}\""))
            .header("x-goog-generation", generation)
    }

    fn get(&self, request: &Request) -> Answer {
        let Some(object) = self.objects.get(&request.key) else {
            return Answer::new(404).body("<Error><Code>NoSuchKey</Code></Error>");
        };
        let e_tag = format!("\"{}\"", object.generation);
        if request
            .header("if-match")
            .is_some_and(|wanted| wanted != e_tag)
        {
            return Answer::new(412);
        }
        let size = object.bytes.len();
        let range = request
            .header("range")
            .and_then(|text| text.strip_prefix("bytes="));
        let mut answer = match range.map(|text| text.split_once('-').unwrap()) {
            None => Answer::new(200).body(object.bytes.clone()),
            Some((first, last)) => {
                let [first, last] = [first, last].map(|text| text.parse::<u64>().unwrap());
                if first >= size as u64 {
                    return Answer::new(416);
                }
                let last = (last as usize).min(size - 1);
                let bytes = object.bytes[first as usize..=last].to_vec();
                Answer::new(206)
                    .header("Content-Range", format!("bytes {first}-{last}/{size}"))
                    .body(bytes)
            }
        };
        for line in &object.metadata {
            write!(answer.headers, "{line}\r\n").unwrap();
        }
        answer
            .header("ETag", e_tag)
            .header("x-goog-generation", object.generation)
            .header("Last-Modified", "Thu, 26 Nov 2026 12:00:00 GMT")
    }

    fn list(&self, request: &Request) -> Answer {
        let parameter = |name: &str| request.query.get(name).map_or("", String::as_str);
        let after = parameter("start-after").max(parameter("continuation-token"));
        let prefix = parameter("prefix");
        let below = self
            .objects
            .iter()
            .filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after);
        let mut found: Vec<_> = below.take(PAGE + 1).collect();
        let mut text = "<ListBucketResult>".to_owned();
        if found.len() > PAGE {
            found.pop();
            let last = escaped(found[PAGE - 1].0);
            write!(text, "<NextContinuationToken>{last}</NextContinuationToken><IsTruncated>true</IsTruncated>").unwrap();
        }
        for (key, object) in found {
            let (key, size, generation) = (escaped(key), object.bytes.len(), object.generation);
            write!(
                text,
                "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>\"{generation}\"</ETag>\
                 <LastModified>2026-11-26T12:00:00.000Z</LastModified></Contents>"
            )
            .unwrap();
        }
        Answer::new(200).body(text + "</ListBucketResult>")
    }

    fn list_uploads(&self, request: &Request) -> Answer {
        let mut text = "<ListMultipartUploadsResult>".to_owned();
        let is_below = |begun: &Begun| begun.key.starts_with(&request.query["prefix"]);
        for (id, begun) in self.uploads.iter().filter(|(_, begun)| is_below(begun)) {
            let key = escaped(&begun.key);
            write!(
                text,
                "<Upload><Key>{key}</Key><UploadId>{id}</UploadId></Upload>"
            )
            .unwrap();
        }
        Answer::new(200)
            .body(text + "<IsTruncated>false</IsTruncated></ListMultipartUploadsResult>")
    }

    fn begin(&mut self, request: &Request) -> Answer {
        let id = format!("upload-{}", self.next_number());
        let begun = Begun {
            key: request.key.clone(),
            metadata: request.metadata(),
            ..Begun::default()
        };
        self.uploads.insert(id.clone(), begun);
        Answer::new(200).body(format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"))
    }

    fn put_part(&mut self, request: &Request) -> Answer {
        let number = request.query["partNumber"].parse().unwrap();
        let Some(begun) = self.uploads.get_mut(&request.query["uploadId"]) else {
            return Answer::new(404);
        };
        begun.parts.insert(number, request.body.clone());
        Answer::new(200)
            .header("ETag", format!("\"part-{number}\""))
            .header("x-goog-generation", 1)
    }

    /// Refuses parts that are absent, out of order, or too small, as Google does.
    fn complete(&mut self, request: &Request) -> Answer {
        let Some(begun) = self.uploads.remove(&request.query["uploadId"]) else {
            return Answer::new(404).body("<Error><Code>NoSuchUpload</Code></Error>");
        };
        let text = String::from_utf8(request.body.clone()).unwrap();
        let numbers = text
            .split("<PartNumber>")
            .skip(1)
            .map(|rest| rest.split('<').next().unwrap().parse::<u32>().unwrap());
        let numbers: Vec<_> = numbers.collect();
        let is_small = |number: &u32| begun.parts[number].len() < 5 << 20;
        let is_whole = numbers.iter().copied().eq(begun.parts.keys().copied());
        if !is_whole || numbers[..numbers.len() - 1].iter().any(is_small) {
            return Answer::new(400).body("<Error><Code>InvalidPart</Code></Error>");
        }
        let bytes = begun.parts.into_values().flatten().collect();
        let generation = self.store(&begun.key, bytes, begun.metadata);
        let body = format!(
            "<CompleteMultipartUploadResult><ETag>\"{generation}\"</ETag></CompleteMultipartUploadResult>"
        );
        Answer::new(200)
            .header("x-goog-generation", generation)
            .body(body)
    }
}
