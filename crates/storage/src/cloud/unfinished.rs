//! Uploads that were begun and neither finished nor aborted, which take room and are in no listing of objects.
//!
//! The crate does not list them. S3's protocol has a request for that, which Google's XML interface has too; Azure drops parts
//! that are not used after a week.

use super::{
    client::{Requests, TryError},
    connect::UnfinishedAccess,
};
use fullbore_format::error::{Error, Result};
use http::{Method, Request, header::AUTHORIZATION};
use object_store::{
    client::HttpRequestBody,
    path::Path,
    signer::{SignedUrlOptions, Signer},
};
use serde::Deserialize;
use std::time::Duration;

/// How long a signed URL is good: one try.
const SIGNED_FOR: Duration = Duration::from_secs(300);

/// Unfinished uploads of one prefix at most.
const MAX_UNFINISHED: usize = 1_000_000;

/// Where the last page ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Marker {
    key: String,
    upload: String,
}

/// An upload that was not finished.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Unfinished {
    pub(super) key: String,
    pub(super) upload_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Page {
    is_truncated: bool,
    next_key_marker: String,
    next_upload_id_marker: String,
    upload: Vec<Unfinished>,
}

/// Returns the body of one page; `None` where the store does not tell.
pub(super) async fn page(
    access: &UnfinishedAccess,
    prefix: &str,
    after: &Marker,
) -> Result<Option<Vec<u8>>, TryError> {
    let mut query = vec![("uploads", ""), ("prefix", prefix)];
    if !after.key.is_empty() {
        query.push(("key-marker", &after.key));
        query.push(("upload-id-marker", &after.upload));
    }
    let mut request = Request::builder().method(Method::GET);
    let (url, client) = match access {
        UnfinishedAccess::Forgotten => return Ok(None),
        UnfinishedAccess::S3(store, client) => {
            let options = SignedUrlOptions::default().with_query(query);
            let url = store
                .signed_url_opts(Method::GET, &Path::default(), SIGNED_FOR, &options)
                .await?;
            (url.to_string(), client)
        }
        UnfinishedAccess::Gcs(bucket, credentials, client) => {
            let bearer = &credentials.get_credential().await?.bearer;
            if !bearer.is_empty() {
                request = request.header(AUTHORIZATION, format!("Bearer {bearer}"));
            }
            let pairs = query
                .iter()
                .map(|(name, value)| format!("{name}={}", encoded(value)));
            (
                format!("{bucket}?{}", pairs.collect::<Vec<_>>().join("&")),
                client,
            )
        }
    };
    let bad = |_| TryError::Wrong("the URL of the bucket is not valid");
    let request = request
        .uri(url)
        .body(HttpRequestBody::empty())
        .map_err(bad)?;
    let response = client.execute(request).await.map_err(failed)?;
    if !response.status().is_success() {
        // The last answer says what the store says.
        return Err(TryError::Store(failed(std::io::Error::other("no list"))));
    }
    let body = response.into_body().bytes().await.map_err(failed)?;
    Ok(Some(body.to_vec()))
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> object_store::Error {
    object_store::Error::Generic {
        store: "uploads",
        source: Box::new(error),
    }
}

/// Returns a value of a query: all but the plainest signs as `%XX`.
fn encoded(value: &str) -> String {
    value.bytes().map(encoded_byte).collect()
}

fn encoded_byte(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    }
}

impl Requests {
    /// Returns every upload below a prefix that was not finished; an empty list where the store forgets them by itself, `None` if it refuses to
    /// list them, or does not know how.
    pub(super) async fn all_unfinished(
        &self,
        prefix: &str,
        describe: &str,
    ) -> Result<Option<Vec<Unfinished>>> {
        let mut found = Vec::new();
        let mut after = Marker::default();
        loop {
            let message = || format!("could not list the unfinished uploads of {describe}");
            let body = match self.unfinished(prefix, &after).await {
                Ok(body) => body,
                Err(failed) if failed.is_refused_kind() => return Ok(None),
                Err(failed) => return Err(failed.error(message())),
            };
            let Some(body) = body else {
                return Ok(Some(found));
            };
            let page: Page = quick_xml::de::from_reader(body.as_slice())
                .map_err(|error| Error::corrupt(message()).because(error))?;
            found.extend(page.upload);
            let next = Marker {
                key: page.next_key_marker,
                upload: page.next_upload_id_marker,
            };
            // A store that answers with the same marker would be asked for ever.
            let goes_on = (&next.key, &next.upload) != (&after.key, &after.upload);
            // And one with new markers may send uploads without end.
            if found.len() > MAX_UNFINISHED {
                return Err(Error::corrupt(message()).because("the list has no end"));
            }
            if !page.is_truncated || !goes_on {
                return Ok(Some(found));
            }
            after = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_unfinished_uploads_is_read() {
        let text = "<?xml version=\"1.0\"?><ListMultipartUploadsResult><Bucket>b</Bucket><KeyMarker></KeyMarker>\
                    <NextKeyMarker>k2</NextKeyMarker><NextUploadIdMarker>u2</NextUploadIdMarker><IsTruncated>true</IsTruncated>\
                    <Upload><Key>a &amp; b</Key><UploadId>u1</UploadId><Initiated>2026</Initiated></Upload>\
                    <Upload><Key>k2</Key><UploadId>u2</UploadId></Upload></ListMultipartUploadsResult>";
        let page: Page = quick_xml::de::from_str(text).unwrap();
        assert!(page.is_truncated);
        assert_eq!(
            (
                page.next_key_marker.as_str(),
                page.next_upload_id_marker.as_str()
            ),
            ("k2", "u2")
        );
        assert_eq!(page.upload[0].key, "a & b");
        assert_eq!(page.upload[1].upload_id, "u2");
        let none: Page = quick_xml::de::from_str("<ListMultipartUploadsResult/>").unwrap();
        assert!(none.upload.is_empty() && !none.is_truncated);
    }

    #[test]
    fn signs_of_a_query_are_encoded() {
        assert_eq!(encoded("a/b c&\u{e4}"), "a/b%20c%26%C3%A4");
    }
}
