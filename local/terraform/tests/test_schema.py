"""The Google provider's schema as it is read from a package like CDKTF's."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from local.terraform import schema

pytestmark = pytest.mark.unit

BUCKET = """
export class BucketRuleOutputReference extends cdktf.ComplexObject {
  public constructor(terraformResource: cdktf.IInterpolatingParent, terraformAttribute: string) {
    super(terraformResource, terraformAttribute, false, 0);
  }

  // age - computed: false, optional: false, required: true
  private _age?: number;
  public get age() {
    return this.getNumberAttribute('age');
  }
}
export class BucketTimeoutsOutputReference extends cdktf.ComplexObject {
  public constructor(terraformResource: cdktf.IInterpolatingParent, terraformAttribute: string) {
    super(terraformResource, terraformAttribute, false);
  }

  // create - computed: false, optional: true, required: false
  private _create?: string;
  public get create() {
    return this.getStringAttribute('create');
  }
}
export class BucketOwnerOutputReference extends cdktf.ComplexObject {
  // email - computed: true, optional: false, required: false
  public get email() {
    return this.getStringAttribute('email');
  }
}
export class Bucket extends cdktf.TerraformResource {
  public static readonly tfResourceType = "google_bucket";

  // labels - computed: false, optional: true, required: false
  private _labels?: { [key: string]: string };
  public get labels() {
    return this.getStringMapAttribute('labels');
  }

  // name - computed: false, optional: false, required: true
  private _name?: string;
  public get name() {
    return this.getStringAttribute('name');
  }

  // zones - computed: true, optional: true, required: false
  private _zones?: string[];
  public get zones() {
    return cdktf.Fn.tolist(this.getListAttribute('zones'));
  }

  // owner - computed: true, optional: false, required: false
  private _owner = new BucketOwnerList(this, "owner", false);
  public get owner() {
    return this._owner;
  }

  // rule - computed: false, optional: false, required: true
  private _rule = new BucketRuleOutputReference(this, "rule");
  public get rule() {
    return this._rule;
  }

  // timeouts - computed: false, optional: true, required: false
  private _timeouts = new BucketTimeoutsOutputReference(this, "timeouts");
  public get timeouts() {
    return this._timeouts;
  }
}
"""


def package(folder: Path, source: str) -> Path:
    """A package of one resource. Its files are JavaScript; the TypeScript is in their source maps."""
    encoded = base64.b64encode(json.dumps({"sourcesContent": [source]}).encode()).decode()
    (folder / "bucket").mkdir()
    (folder / "bucket/index.js").write_text(f"exports.x = 1;\n//# sourceMappingURL=data:application/json;base64,{encoded}\n")
    return folder


def test_attributes_and_blocks_are_as_the_comments_say(tmp_path: Path) -> None:
    bucket = schema.read(package(tmp_path, BUCKET))["resources"]["google_bucket"]

    flags = {
        name: (each["type"], each["required"], each["optional"], each["computed"])
        for name, each in bucket["attributes"].items()
    }
    assert flags == {
        "labels": (["map", "string"], False, True, False),
        "name": ("string", True, False, False),
        "zones": (["set", "string"], False, True, True),
        "owner": (["list", ["object", {"email": "string"}]], False, False, True),
    }
    rule, timeouts = bucket["blocks"]["rule"], bucket["blocks"]["timeouts"]
    assert (rule["nesting"], rule["min"], rule["max"]) == ("list", 1, 1)
    assert rule["block"]["attributes"]["age"]["type"] == "number"
    assert (timeouts["nesting"], timeouts["min"]) == ("single", 0)


def test_a_type_that_it_does_not_know_is_named(tmp_path: Path) -> None:
    with pytest.raises(schema.Unreadable, match="'age' is unknown: 'Date'"):
        schema.read(package(tmp_path, BUCKET.replace("_age?: number", "_age?: Date")))


def test_a_folder_without_a_resource_is_named(tmp_path: Path) -> None:
    with pytest.raises(schema.Unreadable, match="bucket: expected one class of a resource"):
        schema.read(package(tmp_path, "export const x = 1;"))
