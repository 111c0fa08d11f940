"""The same request again, in one server and on two boots."""
