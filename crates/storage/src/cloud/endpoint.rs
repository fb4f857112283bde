//! The URL of a store.

use http::Uri;
use std::net::IpAddr;

/// Returns the URL of a store without slashes at its end.
///
/// # Errors
/// The reason why it cannot be one. It does not repeat the URL.
pub(super) fn checked_endpoint(value: &str) -> Result<String, &'static str> {
    let rest = value
        .strip_prefix("https://")
        .or_else(|| value.strip_prefix("http://"));
    let Some(rest) = rest else {
        return Err("it does not begin with https:// or http://");
    };
    if rest.contains('@') {
        return Err("credentials do not belong in it");
    }
    const NO_URL: &str = "it is not the URL of a host";
    if rest.contains(['?', '#', ' ']) {
        return Err(NO_URL);
    }
    let url: Uri = value.parse().map_err(|_| NO_URL)?;
    let authority = url.authority().ok_or(NO_URL)?;
    let has_port = authority.as_str().len() > authority.host().len();
    if authority.host().is_empty() || has_port && authority.port_u16().is_none() {
        return Err(NO_URL);
    }
    Ok(value.trim_end_matches('/').to_owned())
}

/// Returns whether the host of a URL is an IP address. Then no bucket can stand before it.
pub(super) fn is_address(endpoint: &str) -> bool {
    let url = endpoint.parse::<Uri>().ok();
    let host = url.as_ref().and_then(Uri::host).unwrap_or_default();
    host.starts_with('[') || host.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_the_url_of_a_host() {
        for good in [
            "https://store.example",
            "http://store:9000",
            "http://127.0.0.1:1/account",
            "http://[::1]:9000",
        ] {
            assert_eq!(checked_endpoint(good).unwrap(), good);
            assert_eq!(
                is_address(good),
                good.contains("1]") || good.contains("127")
            );
        }
        assert_eq!(checked_endpoint("https://a/").unwrap(), "https://a");
        for bad in [
            "store:9000",
            "https://",
            "http://:9000",
            "http://host:port",
            "http://host:99999",
            "https://me:word@store",
            "https://a b",
            "https://a?b",
            "http://\u{e4}",
        ] {
            checked_endpoint(bad).unwrap_err();
        }
    }
}
