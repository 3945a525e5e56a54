variable "name" {
  type = string
}

variable "project" {
  type = string
}

variable "region" {
  type = string
}

variable "account" {
  description = "The e-mail address of the environment's account, once it has its roles."
  type        = string
}

variable "bucket" {
  description = "The environment's bucket. It is made here, because pip's settings must lie in it before the environment installs packages."
  type        = string
}

variable "package_index" {
  type = string
}

variable "dags" {
  description = "The folder of DAGs, job files and streams."
  type        = string
}

variable "network_attachment" {
  type = string
}

variable "kms_key" {
  type = string
}

variable "force_destroy" {
  type = bool
}

variable "settings" {
  description = "Environment variables of every component (docs/operate/compute.md)."
  type        = map(string)
}

locals {
  # The wheel, and what Composer's image lacks of its needs; `make composer-bundle` writes the same list, and a test compares them.
  packages = {
    airflow-provider-nightshift = "==0.3.0"
    jsonschema-rs               = "==0.61.2"
    obstore                     = "==0.12.1"
    orjson                      = "==3.13.0"
    sqlglot                     = "==30.30.0"
  }
  # The demo's files are for the local stack.
  files = setsubtract(fileset(var.dags, "**/*.{py,yaml,yml}"), ["jobs/package-embeddings.yaml", "streams/package-texts.yaml"])
}

resource "google_storage_bucket" "airflow" {
  project                     = var.project
  name                        = var.bucket
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = var.force_destroy

  dynamic "encryption" {
    for_each = var.kms_key == null ? [] : [var.kms_key]
    content {
      default_kms_key_name = encryption.value
    }
  }
}

resource "google_storage_bucket_object" "pip" {
  bucket  = google_storage_bucket.airflow.name
  name    = "config/pip/pip.conf"
  content = "[global]\nindex-url = ${var.package_index}\n"
}

# Nothing goes to plugins/: Composer gives that folder to neither scheduler nor triggerer, and the wheel has everything.
resource "google_storage_bucket_object" "dags" {
  for_each = local.files
  bucket   = google_storage_bucket.airflow.name
  name     = "dags/${each.key}"
  source   = "${var.dags}/${each.key}"
}

resource "google_composer_environment" "this" {
  project = var.project
  region  = var.region
  name    = var.name

  storage_config {
    bucket = google_storage_bucket.airflow.name
  }

  config {
    environment_size           = "ENVIRONMENT_SIZE_SMALL"
    enable_private_environment = var.network_attachment != null

    node_config {
      service_account             = var.account
      composer_network_attachment = var.network_attachment
    }

    software_config {
      image_version = "composer-3-airflow-3.3.1"
      env_variables = var.settings
      pypi_packages = local.packages
    }

    workloads_config {
      # Nights wait there: with one, an upgrade of it lets every wait begin anew.
      triggerer {
        count     = 2
        cpu       = 1
        memory_gb = 2
      }
    }

    dynamic "encryption_config" {
      for_each = var.kms_key == null ? [] : [var.kms_key]
      content {
        kms_key_name = encryption_config.value
      }
    }
  }

  depends_on = [google_storage_bucket_object.pip]
}

output "web" {
  value = google_composer_environment.this.config[0].airflow_uri
}

output "settings" {
  value = var.settings
}

output "made" {
  description = "All resources, for the tests of the root."
  value = {
    storage_bucket_airflow     = google_storage_bucket.airflow
    storage_bucket_object_pip  = google_storage_bucket_object.pip
    storage_bucket_object_dags = google_storage_bucket_object.dags
    composer_environment_this  = google_composer_environment.this
  }
}
