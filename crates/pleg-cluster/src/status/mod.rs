//! Pod statuses, on their way to the API server.
