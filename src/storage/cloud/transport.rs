//! One request and its answer: counted, held to the limits of the rate, and noted for whoever decides what happens next.

use super::{answer::Answer, settings::CloudSettings};
use crate::queue::{Locked, RateLimit};
use async_trait::async_trait;
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
        HttpService, ReqwestConnector,
    },
};
use std::{
    error::Error as _,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

tokio::task_local! {
    /// The last answer of the attempt that this task makes.
    pub(super) static LAST_ANSWER: Arc<Mutex<Answer>>;
}

/// Bytes of requests and answers that wait neither for a limit of the user nor for one of the connections.
pub(super) const SMALL_BYTES: u64 = 64 << 10;

/// What was asked of an object store so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CloudCounts {
    /// Requests that were sent, those for credentials too.
    pub requests: u64,
    /// Bytes of content that were sent.
    pub sent_bytes: u64,
    /// Bytes of content that were received.
    pub received_bytes: u64,
    /// Requests that were sent again.
    pub retries: u64,
    /// Answers that said that the store is asked too often.
    pub throttled: u64,
    /// Time that threads waited for `--limit-upload` and `--limit-download`.
    pub limited: Duration,
    /// Time that threads waited before they tried again.
    pub paused: Duration,
}

impl CloudCounts {
    /// The sum of both.
    #[must_use]
    pub fn plus(&self, more: &Self) -> Self {
        Self {
            requests: self.requests + more.requests,
            sent_bytes: self.sent_bytes + more.sent_bytes,
            received_bytes: self.received_bytes + more.received_bytes,
            retries: self.retries + more.retries,
            throttled: self.throttled + more.throttled,
            limited: self.limited + more.limited,
            paused: self.paused + more.paused,
        }
    }
}

/// Counts requests, and holds them to the limits of the user.
#[derive(Debug, Default)]
pub(super) struct CloudMeter {
    pub(super) requests: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) throttled: AtomicU64,
    limited_micros: AtomicU64,
    pub(super) paused_micros: AtomicU64,
    upload_limit: Option<RateLimit>,
    download_limit: Option<RateLimit>,
}

impl CloudMeter {
    pub(super) fn new(settings: &CloudSettings) -> Self {
        Self {
            upload_limit: settings.upload_limit.map(RateLimit::of),
            download_limit: settings.download_limit.map(RateLimit::of),
            ..Self::default()
        }
    }

    pub(super) fn counts(&self) -> CloudCounts {
        CloudCounts {
            requests: self.requests.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
            received_bytes: self.received_bytes.load(Relaxed),
            retries: self.retries.load(Relaxed),
            throttled: self.throttled.load(Relaxed),
            limited: Duration::from_micros(self.limited_micros.load(Relaxed)),
            paused: Duration::from_micros(self.paused_micros.load(Relaxed)),
        }
    }

    /// Waits until bytes may be sent. Callers wait before a request and not within one: the time for its answer goes on meanwhile.
    pub(super) async fn may_send(&self, bytes: u64) {
        self.wait_for(self.upload_limit.as_ref(), bytes).await;
    }

    /// What is small passes at once: a lease is lost if its renewal waits behind the parts of an upload.
    async fn wait_for(&self, limit: Option<&RateLimit>, bytes: u64) {
        let pause = limit.map(|limit| limit.reserve(bytes)).unwrap_or_default();
        if !pause.is_zero() && bytes > SMALL_BYTES {
            self.limited_micros
                .fetch_add(pause.as_micros() as u64, Relaxed);
            tokio::time::sleep(pause).await;
        }
    }
}

/// Makes clients whose requests are metered.
#[derive(Debug, Clone)]
pub(super) struct MeteredConnector(pub(super) Arc<CloudMeter>);

impl HttpConnector for MeteredConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(MeteredService {
            client,
            meter: self.0.clone(),
        }))
    }
}

struct MeteredService {
    client: HttpClient,
    meter: Arc<CloudMeter>,
}

impl fmt::Debug for MeteredService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MeteredService")
    }
}

#[async_trait]
impl HttpService for MeteredService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let meter = &self.meter;
        let host = request.uri().host().unwrap_or_default();
        let is_of_host = host.starts_with("169.254.") || host.starts_with("metadata.google");
        let has_body = request.method() != http::Method::HEAD;
        let bytes = request.body().content_length() as u64;
        meter.requests.fetch_add(1, Relaxed);
        meter.sent_bytes.fetch_add(bytes, Relaxed);
        let response = match self.client.execute(request).await {
            Ok(response) => response,
            Err(error) => {
                note(Answer {
                    was_refused: error.kind() == HttpErrorKind::Connect,
                    is_of_host,
                    ..Answer::broken(words_of(&error))
                });
                return Err(error);
            }
        };
        let mut answer = answer_of(&response);
        if response.status().is_success() {
            note(answer);
            let bytes = if has_body { body_bytes(&response) } else { 0 };
            meter.received_bytes.fetch_add(bytes, Relaxed);
            meter.wait_for(meter.download_limit.as_ref(), bytes).await;
            return Ok(response);
        }
        answer.is_of_host = is_of_host;
        let (parts, body) = response.into_parts();
        let body = body.bytes().await.unwrap_or_default();
        answer.read_body(&body);
        if answer.is_throttled() {
            meter.throttled.fetch_add(1, Relaxed);
        }
        note(answer);
        Ok(HttpResponse::from_parts(parts, body.into()))
    }
}

fn note(answer: Answer) {
    let _ = LAST_ANSWER.try_with(|last| *last.locked() = answer); // outside of an attempt there is no caller to tell
}

fn answer_of(response: &HttpResponse) -> Answer {
    let header = |name: &str| {
        let value = response.headers().get(name)?;
        value.to_str().ok()
    };
    let seconds = header("retry-after").and_then(|text| text.trim().parse().ok());
    Answer {
        status: Some(response.status().as_u16()),
        code: header("x-ms-error-code").unwrap_or_default().to_owned(),
        retry_after: seconds.map(Duration::from_secs),
        region: header("x-amz-bucket-region")
            .filter(|_| response.status().is_redirection())
            .map(str::to_owned),
        ..Answer::default()
    }
}

/// Bytes that an answer has by its own account.
fn body_bytes(response: &HttpResponse) -> u64 {
    let length = response.headers().get("content-length");
    let length = length.and_then(|value| value.to_str().ok());
    length
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// Why there was no answer: the innermost cause, which has the system's words and no part of the request.
pub(super) fn words_of(error: &HttpError) -> String {
    let kind = match error.kind() {
        HttpErrorKind::Connect => "could not connect to the store",
        HttpErrorKind::Timeout => "the store did not answer in time",
        _ => "the connection to the store broke",
    };
    let mut cause = error.source();
    while let Some(next) = cause.and_then(|cause| cause.source()) {
        cause = Some(next);
    }
    match cause {
        Some(cause) => {
            let text = cause.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            // TLS takes the words of a server without it for a damaged message.
            let text = match text.contains("InvalidContentType") {
                true => "it does not speak TLS, so its endpoint begins with http://",
                false => text,
            };
            format!("{kind}: {text}")
        }
        None => kind.to_owned(),
    }
}
