# The database of streams. Its user is an account of Google, who logs in with a token: there is no password to keep.

variable "name" {
  type = string
}

variable "project" {
  type = string
}

variable "region" {
  type = string
}

variable "network" {
  description = "A network with private service access."
  type        = string
}

variable "cpus" {
  type = number
}

variable "account" {
  description = "The e-mail address of the account that logs in."
  type        = string
}

variable "kms_key" {
  type = string
}

variable "deletion_protection" {
  type = bool
}

resource "google_alloydb_cluster" "this" {
  project         = var.project
  location        = var.region
  cluster_id      = var.name
  deletion_policy = var.deletion_protection ? "DEFAULT" : "FORCE"

  network_config {
    network = var.network
  }

  dynamic "encryption_config" {
    for_each = var.kms_key == null ? [] : [var.kms_key]
    content {
      kms_key_name = encryption_config.value
    }
  }

  continuous_backup_config {
    enabled = true
    dynamic "encryption_config" {
      for_each = var.kms_key == null ? [] : [var.kms_key]
      content {
        kms_key_name = encryption_config.value
      }
    }
  }
}

resource "google_alloydb_instance" "primary" {
  cluster           = google_alloydb_cluster.this.name
  instance_id       = "primary"
  instance_type     = "PRIMARY"
  availability_type = "REGIONAL"

  machine_config {
    cpu_count = var.cpus
  }
  database_flags = {
    "alloydb.iam_authentication" = "on"
  }
  client_connection_config {
    ssl_config {
      ssl_mode = "ENCRYPTED_ONLY"
    }
  }
}

resource "google_alloydb_user" "streams" {
  cluster   = google_alloydb_cluster.this.name
  user_id   = trimsuffix(var.account, ".gserviceaccount.com")
  user_type = "ALLOYDB_IAM_USER"
  # The second lets it create the extension `vector` and its tables.
  database_roles = ["alloydbiamuser", "alloydbsuperuser"]
  depends_on     = [google_alloydb_instance.primary]
}

output "address" {
  value = google_alloydb_instance.primary.ip_address
}

output "user" {
  value = google_alloydb_user.streams.user_id
}

output "made" {
  description = "All resources, for the tests of the root."
  value = {
    alloydb_cluster_this     = google_alloydb_cluster.this
    alloydb_instance_primary = google_alloydb_instance.primary
    alloydb_user_streams     = google_alloydb_user.streams
  }
}
